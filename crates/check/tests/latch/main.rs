//! The latches on real threads, and between processes.

mod barrier;
mod biased;
mod lw;
mod opt;
mod shared;
mod shfl;
mod slots;
