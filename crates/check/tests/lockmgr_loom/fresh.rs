//! First uses under loom: a new manager, new pages, and reused cells.
//!
//! As `table.rs`. The long form is
//! `cargo test --release -p latchwork-check --test lockmgr_loom fresh:: -- --ignored`.

use crate::stage::{A, Bias, Life, Play};
use latchwork_check::neighbours::neighbours;
use latchwork_check::overlaid::{Action, Flaw, together};
use latchwork_check::{Overlaid, models};
use latchwork_lockmgr::{KeyRange, Manager, RangeKind, Wait, shared};
use latchwork_region::Region;
use shared::{S, X};

models! {
    loom_entry_reuse, loom_entry_reuse_long, loom_entry_reuse_control:
        entry_reuse(), 3, 4, [Flaw::Hasty, Flaw::Lax];
    loom_first_page, loom_first_page_long, loom_first_page_control:
        first_page(), 2, 3, [Flaw::Hasty, Flaw::Lax];
    loom_page_reuse, loom_page_reuse_long, loom_page_reuse_control:
        page_reuse(), 3, 4, [Flaw::Lax];
    loom_keyspaces, loom_keyspaces_long, loom_keyspaces_control:
        keyspaces(), 2, 3, [Flaw::Lax, Flaw::Deaf];
    loom_lay_out, loom_lay_out_long, loom_lay_out_control: lay_out(), 1, 2, [Flaw::Lax];
}

/// Two names under one bias.
fn near() -> [&'static [u8]; 2] {
    neighbours(2).try_into().unwrap()
}

/// A weak lock's entry was used by another name, which is not locked now and must not be moved.
fn entry_reuse() -> impl Fn() + Send + Sync + 'static {
    let [near, other] = near();
    let before = move |life: &Life<'_>| {
        life.owner().lock(other, S).unwrap();
        life.owner().unlock(other).unwrap();
    };
    let life = move |life: &Life<'_>| match life.me {
        0 => {
            life.owner().lock(near, S).unwrap();
            life.guarded.read();
            life.owner().unlock(near).unwrap();
        }
        _ => {
            life.owner().lock(near, X).unwrap();
            life.guarded.count();
            life.owner().unlock(near).unwrap();
        }
    };
    Play { names: [near, other], ..Play::new(2, Bias::Open) }.model(before, life)
}

/// A session's first owner and its first weak lock, in reused memory. A thread that closes the bias
/// concurrently must not read the old contents.
fn first_page() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| match life.me {
        0 => {
            let owner = life.session().owner().unwrap();
            owner.lock(A, S).unwrap();
            life.guarded.read();
            owner.unlock(A).unwrap();
        }
        _ => {
            life.owner().lock(A, X).unwrap();
            life.guarded.count();
            life.owner().unlock(A).unwrap();
        }
    };
    Play { ownerless: 1, dirty: true, ..Play::new(2, Bias::Open) }.model(|_| {}, life)
}

/// A session releases its page of owners, and another session reuses it.
fn page_reuse() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| {
        let session = life.manager.session().unwrap();
        let owner = session.owner().unwrap();
        life.meet(owner.id());
        owner.lock(A, S).unwrap();
        owner.unlock(A).unwrap();
        drop(owner);
        drop(session);
    };
    let play = Play::new(2, Bias::Open);
    Play { own: true, ownerless: 2, dirty: true, ..play }.model(|_| {}, life)
}

/// The first lock on a range, by two owners at once.
fn keyspaces() -> impl Fn() + Send + Sync + 'static {
    let life = |life: &Life<'_>| {
        let (range, kind) = (KeyRange::all(), RangeKind::WriteNext);
        life.owner().lock_range(b"keys", range, kind, Wait::Detect).unwrap();
        life.guarded.count();
        life.owner().release_all().unwrap();
    };
    Play { dirty: true, ..Play::new(2, Bias::Closed) }.model(|_| {}, life)
}

/// Two processes create the manager: one does, the other waits for it.
fn lay_out() -> impl Fn() + Send + Sync + 'static {
    let options = latchwork_region::Options {
        processes: 2,
        threads: 2,
        waiters: 1,
        limit: 4 << 20,
        ..latchwork_region::Options::default()
    };
    let first = Region::<Overlaid>::heap(&options).unwrap();
    let both = [first.another().unwrap(), first];
    move || {
        let operations = both.iter().map(|region| -> Action<'_> {
            Box::new(move || {
                Manager::new(region.clone(), shared::modes(), latchwork_check::early::early())
                    .unwrap();
            })
        });
        together(operations.collect());
    }
}
