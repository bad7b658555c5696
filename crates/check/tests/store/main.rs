//! Laws of transactions and of keys.

mod credit;
mod dialogue;
mod durable;
mod faces;
mod files;
mod full;
mod ghosts;
mod hands;
mod histories;
mod history;
mod isolation;
mod keys;
mod load;
mod long;
mod oracle;
mod prepared;
mod readonly;
mod redo;
mod roles;
mod space;
mod stage;
mod stuck;
mod tasks;
mod tasks_threads;
mod tasks_wakers;
mod values;
