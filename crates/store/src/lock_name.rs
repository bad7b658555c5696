//! What the lock manager calls a key of a tree.

/// Bytes of the longest name.
pub(crate) const LOCK_NAME: usize = 20;

/// The name of a key's lock: the tree and the key, or the tree, the key's beginning and a hash of
/// it. Two long keys with the same name are one to the lock manager, which makes them wait, and no
/// more.
pub(crate) fn lock_name(tree: u32, key: &[u8], to: &mut [u8; LOCK_NAME]) -> usize {
    const SHORT: usize = 12;
    to[..4].copy_from_slice(&tree.to_be_bytes());
    if key.len() <= SHORT {
        to[4..4 + key.len()].copy_from_slice(key);
        return 4 + key.len();
    }
    to[4..12].copy_from_slice(&key[..8]);
    // FNV-1a, 64 bits.
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    to[12..].copy_from_slice(&hash.to_be_bytes());
    LOCK_NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_locks_are_short_and_differ() {
        let of = |tree, key: &[u8]| {
            let mut bytes = [0; LOCK_NAME];
            let length = lock_name(tree, key, &mut bytes);
            bytes[..length].to_vec()
        };
        assert_eq!(of(7, b"ab"), b"\0\0\0\x07ab");
        assert_ne!(of(7, b"ab"), of(8, b"ab"));
        let (long, other) = ([1; 40], [[1; 39].as_slice(), &[2]].concat());
        assert!(of(7, &long).len() <= 20 && of(7, &long) != of(7, &other));
    }
}
