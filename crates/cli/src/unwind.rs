//! The callers of a call that waited, unwound from a piece of the thread's stack with the exception
//! tables of its code files. These exist without debug information and for code without frame
//! pointers, which is why the stack was recorded instead of a list of return addresses.

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module,
    UnwindRegsNative, Unwinder, UnwinderNative,
};
use latchwork_profile::{Snapshot, Stack};
use std::rc::Rc;

use crate::symbols::Symbols;

/// The most frames that are unwound: a piece of a stack rarely has more.
const FRAMES_MAX: usize = 64;

/// The tables of one process.
pub(crate) struct Tables {
    unwinder: UnwinderNative<Rc<[u8]>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

impl Tables {
    /// No tables.
    pub(crate) fn none() -> Self {
        Self { unwinder: UnwinderNative::new(), cache: CacheNative::new() }
    }

    /// Reads the tables of a process's code files.
    pub(crate) fn of(snapshot: &Snapshot, symbols: &mut Symbols) -> Self {
        let mut tables = Self::none();
        for mapping in &snapshot.maps {
            let Some((module, base)) = symbols.module(mapping) else { continue };
            let info = ExplicitModuleSectionInfo {
                eh_frame: module.eh_frame.as_ref().map(|section| section.bytes.clone()),
                eh_frame_svma: module.eh_frame.as_ref().map(|section| section.range.clone()),
                eh_frame_hdr: module.eh_frame_hdr.as_ref().map(|section| section.bytes.clone()),
                eh_frame_hdr_svma: module.eh_frame_hdr.as_ref().map(|s| s.range.clone()),
                ..ExplicitModuleSectionInfo::default()
            };
            let range = mapping.start..mapping.end;
            tables.unwinder.add_module(Module::new(mapping.path.clone(), range, base, info));
        }
        tables
    }

    /// Returns the known return addresses of a chain, from the latch function's outwards.
    pub(crate) fn callers(&mut self, stack: &Stack) -> Vec<u64> {
        let mut callers = vec![stack.row.address];
        let mut registers = registers(stack);
        let mut read = |address: u64| {
            let at = address.checked_sub(stack.sp).filter(|at| at % 8 == 0).ok_or(())? / 8;
            stack.words.get(usize::try_from(at).map_err(|_| ())?).copied().ok_or(())
        };
        while callers.len() < FRAMES_MAX
            && let Some(last) = callers.last().copied().and_then(FrameAddress::from_return_address)
        {
            let next = self.unwinder.unwind_frame(last, &mut registers, &mut self.cache, &mut read);
            let Ok(Some(next)) = next else { break };
            callers.push(next);
        }
        callers
    }
}

/// The registers after the latch function has returned.
fn registers(stack: &Stack) -> UnwindRegsNative {
    #[cfg(target_arch = "x86_64")]
    return UnwindRegsNative::new(stack.row.address, stack.sp.wrapping_add(8), stack.fp);
    #[cfg(target_arch = "aarch64")]
    return UnwindRegsNative::new(stack.row.address, stack.sp, stack.fp);
}
