/* What the vendors' headers need of the C library, so that bindgen reads the same everywhere (x86-64 Linux). */
#pragma once
typedef __SIZE_TYPE__ size_t;
#ifdef __cplusplus
#define NULL __null
#else
#define NULL ((void *)0)
#endif
#define offsetof(type, member) __builtin_offsetof(type, member)
