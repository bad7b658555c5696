//! The pool's part of a sweep: what dead thread slots hold is repaired before they become free.

use latchwork_machine::ConstMachine;
use latchwork_region::{Dead, Error as RegionError, InHand, Layer, Repair};

use crate::pool::PoolRepair;
use crate::{Error, Pool};

impl<M: ConstMachine> Repair<M> for PoolRepair<M> {
    fn layer(&self) -> Layer {
        Layer::Pool
    }

    fn repair(&self, dead: &[Dead<'_, M>]) -> Result<(), RegionError> {
        let inner = self.pool.upgrade().ok_or(RegionError::NoRepair(Layer::Pool))?;
        let pool = Pool { inner };
        let thread = pool.inner.region.sweeper()?;
        let done = pool.handle(&thread).and_then(|handle| {
            let slots: Vec<_> = dead.iter().map(Dead::number).collect();
            handle.repair(&slots)
        });
        done.map(drop).map_err(|error| match error {
            Error::Region(error) => error,
            _ => RegionError::Repair(Layer::Pool),
        })
    }

    /// The pool has no cells of the region.
    fn leads_to(&self, cells: &[InHand]) -> Result<Vec<bool>, RegionError> {
        Ok(vec![false; cells.len()])
    }
}
