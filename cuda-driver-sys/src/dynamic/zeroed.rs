//! Default values of C structures: all bytes zero, as C's `= {0}`.

/// Implements `Default` as all bytes zero.
macro_rules! zeroed {
    ($($name:ident,)*) => {
        $(
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: a plain C structure of integers, pointers, arrays and optional function pointers:
                    // zero is a value of each. `xtask codegen` lists no other type here.
                    unsafe { core::mem::zeroed() }
                }
            }
        )*
    };
}
