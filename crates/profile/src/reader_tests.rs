use super::*;

fn blank() -> Vec<u8> {
    let mut bytes = vec![0; Snapshot::SIZE];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn a_blank_segment_is_empty() {
    let snapshot = Snapshot::parse(&blank()).unwrap();
    assert!(snapshot.latches.is_empty() && snapshot.sites.is_empty() && snapshot.maps.is_empty());
    assert_eq!(snapshot.acquisitions(), 0);
}

#[test]
fn what_is_no_segment_is_refused() {
    let short = Snapshot::parse(&blank()[1..]).unwrap_err();
    assert!(matches!(short, FormatError::TooShort { .. }), "{short}");
    assert_eq!(Snapshot::parse(&vec![0; Snapshot::SIZE]).unwrap_err(), FormatError::Foreign);
    let mut bytes = blank();
    bytes[offset_of!(Header, maps_length)..][..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(Snapshot::parse(&bytes).unwrap_err(), FormatError::Maps(u32::MAX));
}

#[test]
fn a_row_is_read_back() {
    let mut bytes = blank();
    let at = offset_of!(Segment, latches) + 7 * size_of::<Entry>();
    put(&mut bytes, at + offset_of!(Entry, key), 0x7000_1234);
    put(&mut bytes, at + offset_of!(Entry, class), Class::Write as u64);
    put(&mut bytes, at + offset_of!(Entry, acquisitions), 10);
    put(&mut bytes, at + offset_of!(Entry, contended), 12);
    put(&mut bytes, at + offset_of!(Entry, wait_max), 900);
    for (bucket, n) in [(5, 3u32), (10, 1)] {
        bytes[at + offset_of!(Entry, waits) + 4 * bucket..][..4].copy_from_slice(&n.to_ne_bytes());
    }
    let snapshot = Snapshot::parse(&bytes).unwrap();
    let [row] = &snapshot.latches[..] else { panic!("{snapshot:?}") };
    assert_eq!((row.address, row.class, row.contended), (0x7000_1234, Class::Write, 10));
    assert_eq!(row.wait_quantile(0.5), Some(31));
    assert_eq!(row.wait_quantile(0.99), Some(900));
}

#[test]
fn a_chain_is_read_back_once_it_is_whole() {
    let mut bytes = blank();
    let at = offset_of!(Segment, chains) + 3 * size_of::<Chain>();
    put(&mut bytes, at + offset_of!(Entry, key), 99);
    put(&mut bytes, at + offset_of!(Entry, class), Class::Mutex as u64);
    put(&mut bytes, at + offset_of!(Chain, caller), 0x5000);
    put(&mut bytes, at + offset_of!(Chain, stack) + 8, 0x6000);
    assert!(Snapshot::parse(&bytes).unwrap().chains.is_empty());
    put(&mut bytes, at + offset_of!(Chain, length), 2);
    let chains = Snapshot::parse(&bytes).unwrap().chains;
    let [chain] = &chains[..] else { panic!("{chains:?}") };
    assert_eq!((chain.index, chain.row.address), (3, 0x5000));
    assert_eq!(chain.words, [0, 0x6000]);
    put(&mut bytes, at + offset_of!(Chain, length), u64::MAX);
    assert_eq!(Snapshot::parse(&bytes).unwrap().chains[0].words.len(), STACK);
}

#[test]
fn the_stack_is_told_from_the_heap() {
    let mut bytes = blank();
    let text = b"1000-2000 0 /bin/a\n7fff0000000-7fff0020000 0 [stack]\n";
    bytes[offset_of!(Segment, maps)..][..text.len()].copy_from_slice(text);
    bytes[offset_of!(Header, maps_length)..][..4]
        .copy_from_slice(&(text.len() as u32).to_ne_bytes());
    let snapshot = Snapshot::parse(&bytes).unwrap();
    assert!(snapshot.is_on_stack(0x7ff_f001_0000) && snapshot.is_on_stack(0x7ff_efff_0000));
    assert!(!snapshot.is_on_stack(0x1800) && !snapshot.is_on_stack(0x7ff_f002_0000));
}

#[test]
fn a_place_is_one_word() {
    for place in [Place::Site(0x7fff_1234_5678, Class::Spin), Place::Chain(CHAINS - 1)] {
        assert_eq!(Place::from_word(place.word()), Some(place));
    }
    for none in [0, 5 << 60, 15 << 60 | CHAINS as u64] {
        assert_eq!(Place::from_word(none), None);
    }
}

#[test]
fn mappings_that_are_none_are_passed_over() {
    let text =
        b"1000-2000 0 /bin/a b\nx-y 0 /c\n3000-2000 0 /d\n\n5000-6000 zz /e\n7-8 1 /f\x1b[2J";
    let found = mappings(text);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].path, "/bin/a b");
    assert!(!found[1].path.contains('\x1b'));
}

/// Any bytes at all: an error or a snapshot, never a panic.
#[test]
fn any_bytes_are_read_or_refused() {
    let mut state = 0x1234_5678_9abc_def1u64;
    for round in 0..20 {
        let mut bytes = blank();
        for byte in bytes[8..].iter_mut() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = if state.is_multiple_of(round + 1) { state as u8 } else { 0 };
        }
        if round % 2 == 0 {
            bytes[offset_of!(Header, maps_length)..][..4].copy_from_slice(&5000u32.to_ne_bytes());
        }
        if let Ok(snapshot) = Snapshot::parse(&bytes) {
            for row in snapshot.latches.iter().chain(&snapshot.sites) {
                let mut sum = row.clone();
                sum.add(row);
                let _ = (sum.wait_quantile(0.5), sum.wait_quantile(1.0), snapshot.place(row.peer));
            }
            let _ = snapshot.acquisitions();
        }
    }
}
