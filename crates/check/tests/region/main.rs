//! Regions in one process: cells, files, damaged bytes, and models under loom.

mod area;
mod bytes;
mod cells;
mod counts;
mod files;
mod layers;
mod models;
mod opening;
mod slots;
