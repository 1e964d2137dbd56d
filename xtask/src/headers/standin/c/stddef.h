/* What the vendors' headers need of the C library, so that bindgen reads the same everywhere (x86-64 Linux). */
#pragma once
typedef __SIZE_TYPE__ size_t;
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
