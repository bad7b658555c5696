//! The latches under loom: every interleaving of a few threads.

mod biased;
mod condvar;
mod guarded;
mod lw;
mod lw_value;
mod opt;
mod shfl;
mod slots;
