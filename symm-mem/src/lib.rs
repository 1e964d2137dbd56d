//! Symmetric memory: pools whose segments are window-registered in one agreed order
