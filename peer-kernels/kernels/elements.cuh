// Elements: the types in which they are accumulated, and the operations that combine them. The define ELEMENT names
// one of the types below.
//
// Integers wrap around in their own type. Half types are accumulated in f32 and rounded once, to nearest, ties to
// even.
#pragma once

#include "vec16.cuh"

// Adds, multiplies and divides in `Sum`, compares in `Order`, and is stored in memory as `Bits`.
template <typename Bits_, typename Sum_, typename Order_>
struct Integer {
    typedef Bits_ Bits;
    typedef Sum_ Value;
    static __device__ __forceinline__ Value load(Bits bits) { return (Value)(Order_)bits; }
    static __device__ __forceinline__ Bits store(Value value) { return (Bits)value; }
    static __device__ __forceinline__ Value larger(Value a, Value b) { return order(a) < order(b) ? b : a; }
    static __device__ __forceinline__ Value smaller(Value a, Value b) { return order(b) < order(a) ? b : a; }
    // Divides the sum, wrapped to the type, and rounds towards zero.
    static __device__ __forceinline__ Value divide(Value sum, u32 by) {
        return (Value)(sizeof(Order_) < 4 ? (Order_)((int)order(sum) / (int)by) : (Order_)(order(sum) / (Order_)by));
    }

  private:
    static __device__ __forceinline__ Order_ order(Value value) { return (Order_)value; }
};

template <typename Value_>
struct Float {
    typedef Value_ Bits;
    typedef Value_ Value;
    static __device__ __forceinline__ Value load(Bits bits) { return bits; }
    static __device__ __forceinline__ Bits store(Value value) { return value; }
    // For a number and a NaN, the result is the number.
    static __device__ __forceinline__ Value larger(Value a, Value b) {
        if constexpr (sizeof(Value) == 8) return fmax(a, b);
        return fmaxf(a, b);
    }
    static __device__ __forceinline__ Value smaller(Value a, Value b) {
        if constexpr (sizeof(Value) == 8) return fmin(a, b);
        return fminf(a, b);
    }
    static __device__ __forceinline__ Value divide(Value sum, u32 by) { return sum / (Value)by; }
};

struct Half : Float<float> {
    typedef u16 Bits;
    static __device__ __forceinline__ Value load(Bits bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
    static __device__ __forceinline__ Bits store(Value value) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
};

struct BFloat16 : Float<float> {
    typedef u16 Bits;
    static __device__ __forceinline__ Value load(Bits bits) { return __uint_as_float((u32)bits << 16); }
    static __device__ __forceinline__ Bits store(Value value) {
        const u32 bits = __float_as_uint(value);
        if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16 | 0x40);
        return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

namespace elements {
typedef Integer<::u8, ::u32, signed char> i8;
typedef Integer<::u8, ::u32, ::u8> u8;
typedef Integer<::u32, ::u32, int> i32;
typedef Integer<::u32, ::u32, ::u32> u32;
typedef Integer<::u64, ::u64, long long> i64;
typedef Integer<::u64, ::u64, ::u64> u64;
typedef Half f16;
typedef BFloat16 bf16;
typedef Float<float> f32;
typedef Float<double> f64;
}  // namespace elements

typedef elements::ELEMENT Element;
typedef Element::Value Value;
enum : u32 { LANES = VEC16_BYTES / sizeof(Element::Bits) };

struct Lanes {
    Value of[LANES];
};

__device__ __forceinline__ Lanes unpack(const Vec16 &vec) {
    Element::Bits bits[LANES];
    memcpy(bits, &vec, VEC16_BYTES);
    Lanes lanes;
#pragma unroll
    for (u32 i = 0; i < LANES; ++i) lanes.of[i] = Element::load(bits[i]);
    return lanes;
}

__device__ __forceinline__ Vec16 pack(const Lanes &lanes) {
    Element::Bits bits[LANES];
#pragma unroll
    for (u32 i = 0; i < LANES; ++i) bits[i] = Element::store(lanes.of[i]);
    Vec16 vec;
    memcpy(&vec, bits, VEC16_BYTES);
    return vec;
}

struct Sum {
    static __device__ __forceinline__ Value combine(Value a, Value b) { return a + b; }
    static __device__ __forceinline__ Value finish(Value value, u32) { return value; }
};

struct Product : Sum {
    static __device__ __forceinline__ Value combine(Value a, Value b) { return a * b; }
};

struct Largest : Sum {
    static __device__ __forceinline__ Value combine(Value a, Value b) { return Element::larger(a, b); }
};

struct Smallest : Sum {
    static __device__ __forceinline__ Value combine(Value a, Value b) { return Element::smaller(a, b); }
};

struct Average : Sum {
    static __device__ __forceinline__ Value finish(Value value, u32 world) { return Element::divide(value, world); }
};
