//! Addresses of the manager's parts in this process, by name: for reports on cache lines.

use latchwork_machine::ConstMachine;

use crate::Error;
use crate::memory::Memory;
use crate::memory::cells::{cell_at, get};

fn at<T: ?Sized>(what: &T) -> usize {
    core::ptr::from_ref(what).cast::<u8>().addr()
}

impl<M: ConstMachine> Memory<M> {
    /// Returns address, length and name of the parts of the manager and its region. Cells that
    /// change their use are named by their size. A part within another one comes after it.
    pub(crate) fn places(&self) -> Result<Vec<(usize, usize, String)>, Error> {
        let region = &self.inner().region;
        let mut found = region.places();
        let directory = cell_at(region, self.inner().directory)?;
        found.push((at(directory), size_of_val(directory), "directory".to_owned()));
        for number in self.blocks.each() {
            let line = self.partition(number)?;
            found.push((at(line), size_of_val(line), format!("partition {number}")));
            let biases = self.biases(number)?;
            found.push((at(biases), size_of_val(biases), format!("biases {number}")));
            if get(&line.heads).is_none() {
                continue;
            }
            let latched = self.latch(number)?;
            let heads = latched.heads()?;
            found.push((at(heads), size_of_val(heads), format!("chains {number}")));
            for object in latched.each_object()? {
                let cell = self.object(object)?;
                found.push((at(cell), size_of_val(cell), format!("object {object}")));
            }
        }
        for (owner, cell) in self.each_owner() {
            if !get(&cell.weak).is_null() {
                let page = cell_at(region, get(&cell.weak))?;
                found.push((at(page), size_of_val(page), format!("weak-page {owner}")));
            }
            if get(&cell.generation) != 0 {
                found.push((at(cell), size_of_val(cell), format!("owner {owner}")));
            }
        }
        Ok(found)
    }
}
