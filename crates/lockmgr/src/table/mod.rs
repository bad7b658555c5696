//! The locks of the table: objects, their queues, granting, and what is done when memory is short.

pub(crate) mod granting;
pub(crate) mod objects;
pub(crate) mod own_list;
pub(crate) mod queues;
pub(crate) mod reclaiming;
