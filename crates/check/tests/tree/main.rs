//! Trees and their pages: beside naive models, again from the log, and with any bytes.

mod bytes;
mod difference;
mod history;
mod page;
mod unlink;
mod whole;
