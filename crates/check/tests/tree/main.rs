//! Trees and their pages: compared with models, rebuilt from the log, and with random bytes.

mod bytes;
mod difference;
mod history;
mod page;
mod unlink;
mod whole;
