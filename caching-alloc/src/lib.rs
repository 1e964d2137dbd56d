//! A stream-ordered caching allocator for GPU memory, with pools and trace hooks
