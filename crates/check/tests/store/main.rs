//! Laws of transactions and of keys.

mod isolation;
mod keys;
mod oracle;
