//! Dialogues between owners of locks, read from text files and run step by step, as PostgreSQL's
//! isolation tester does with sessions. `dialogues/README.md` describes the language.

mod act;
mod script;

pub(crate) use act::perform;
pub(crate) use script::Script;
