//! Dialogues between owners of locks, read from plain text and acted out, as PostgreSQL's
//! isolation tester does with sessions of a database. `dialogues/README.md` has the language.

mod act;
mod script;

pub(crate) use act::perform;
pub(crate) use script::Script;
