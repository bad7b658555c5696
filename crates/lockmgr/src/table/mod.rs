//! Locks in the table: objects, their queues, granting, operations without room.

pub(crate) mod granting;
pub(crate) mod objects;
pub(crate) mod own_list;
pub(crate) mod queues;
pub(crate) mod reclaiming;
