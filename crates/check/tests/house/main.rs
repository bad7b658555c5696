//! Rules for the sources: layers, lengths, words.

mod book;
mod circles;
mod dependencies;
mod descriptors;
mod layers;
mod lengths;
mod partners;
mod programs;
mod prose;
mod sources;
mod tidy;
mod words;
