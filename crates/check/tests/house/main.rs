//! What holds of the sources: rooms, lengths, words.

mod book;
mod circles;
mod descriptors;
mod layers;
mod lengths;
mod partners;
mod prose;
mod sources;
mod tidy;
mod words;
