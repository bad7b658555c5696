//! Laws of transactions and of keys.

mod files;
mod isolation;
mod keys;
mod oracle;
mod stage;
