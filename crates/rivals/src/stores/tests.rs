//! The same tests for every available store.

use super::{StoreError, StoreKind, StoreOptions};

const OPTIONS: StoreOptions = StoreOptions {
    cache: 16 << 20,
    durable: false,
    tables: 2,
    snapshots: false,
    budget: None,
    history: None,
    recover: false,
};

/// Runs a test with each store that is installed or built in, and names the missing ones.
fn with_each(test: &str, mut operation: impl FnMut(StoreKind, &std::path::Path)) {
    for kind in StoreKind::ALL {
        if let Err(StoreError::Missing(why)) = kind.release() {
            println!("{}: {why}", kind.name());
            continue;
        }
        let name = format!("latchwork-rivals-{test}-{}-{}", std::process::id(), kind.name());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        operation(kind, &folder);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn every_store_keeps_what_it_is_told() {
    with_each("keeps", |kind, folder| {
        let name = kind.name();
        {
            let store = kind.open(folder, &OPTIONS).unwrap();
            let mut session = store.session().unwrap();
            let mut value = Vec::new();
            for n in 0..1000u64 {
                session.put(0, &(n * 7919 % 1000).to_be_bytes(), &[n as u8; 100]).unwrap();
            }
            assert!(session.get(0, &7u64.to_be_bytes(), &mut value).unwrap(), "{name}");
            assert_eq!(value.len(), 100, "{name}");
            assert!(!session.get(1, &7u64.to_be_bytes(), &mut value).unwrap(), "{name}");

            // A transaction of several operations; then a transaction that fails without a trace.
            let moved = session.write(&mut |txn| {
                assert!(txn.get_for_update(0, &1u64.to_be_bytes(), &mut value)?);
                txn.put(1, b"one", &value)?;
                txn.put(1, b"two", b"2")
            });
            assert_eq!(moved, Ok(0), "{name}");
            let failed = session.write(&mut |txn| {
                txn.put(1, b"three", b"3")?;
                Err(StoreError::Failed("test", "on purpose".to_owned()))
            });
            assert!(failed.is_err(), "{name}");
            assert!(!session.get(1, b"three", &mut value).unwrap(), "{name} kept what was undone");
            store.settle().unwrap();
        }
        let store = kind.open(folder, &OPTIONS).unwrap();
        let mut session = store.session().unwrap();
        let mut found = Vec::new();
        let mut count = 0;
        let from = 500u64.to_be_bytes();
        let read = session.read(&mut |txn| {
            count = txn.scan(0, &from, 100, &mut |key, value| {
                assert_eq!(value.len(), 100);
                found.push(u64::from_be_bytes(key.try_into().unwrap()));
            })?;
            Ok(())
        });
        read.unwrap();
        assert_eq!(count, 100, "{name}");
        assert_eq!(found, (500..600).collect::<Vec<u64>>(), "{name}");
    });
}

#[test]
fn every_store_adds_up_under_two_threads() {
    const ADDS: u64 = 200;
    with_each("adds", |kind, folder| {
        let store = kind.open(folder, &OPTIONS).unwrap();
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let mut session = store.session().unwrap();
                    let mut old = Vec::new();
                    for _ in 0..ADDS {
                        let done = session.write(&mut |txn| {
                            let is = txn.get_for_update(0, b"sum", &mut old)?;
                            let sum = if is {
                                u64::from_be_bytes(old[..].try_into().unwrap())
                            } else {
                                0
                            };
                            txn.put(0, b"sum", &(sum + 1).to_be_bytes())
                        });
                        done.unwrap();
                    }
                });
            }
        });
        let mut sum = Vec::new();
        assert!(store.session().unwrap().get(0, b"sum", &mut sum).unwrap());
        assert_eq!(sum, (2 * ADDS).to_be_bytes(), "{}", kind.name());
    });
}
