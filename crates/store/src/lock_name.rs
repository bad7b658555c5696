//! The names under which the lock manager knows the keys of a tree.

/// Maximum length of a name in bytes, which the lock manager compares as two words.
pub(crate) const LOCK_NAME: usize = 16;

/// Maximum length of a key that is contained unchanged in its name.
const SHORT: usize = 12;

/// Returns the name of a key's lock: the tree and the key, or the tree, the beginning of the key
/// and a hash of the key. Two keys with the same name share a lock, which makes their transactions
/// wait for each other and has no other effect.
pub(crate) fn lock_name(tree: u32, key: &[u8], to: &mut [u8; LOCK_NAME]) -> usize {
    to[..4].copy_from_slice(&tree.to_be_bytes());
    if key.len() <= SHORT {
        to[4..4 + key.len()].copy_from_slice(key);
        return 4 + key.len();
    }
    to[4..8].copy_from_slice(&key[..4]);
    to[8..].copy_from_slice(&hash_of(key).to_be_bytes());
    LOCK_NAME
}

/// Splits a name into the tree and the key, or the first bytes of a longer key.
pub(crate) fn of_name(name: &[u8]) -> Option<(u32, &[u8])> {
    let (tree, key) = name.split_first_chunk()?;
    let whole = if name.len() < LOCK_NAME { key } else { key.get(..4)? };
    Some((u32::from_be_bytes(*tree), whole))
}

/// Hashes eight bytes at a time, multiplied to twice as many and folded (Wang Yi's wyhash); the
/// factors are arbitrary odd numbers with mixed bits. The log contains the lock names of prepared
/// transactions, so another hash would be another format of the store.
fn hash_of(key: &[u8]) -> u64 {
    let fold = |hash: u64, eight: [u8; 8]| {
        let word = u64::from_le_bytes(eight);
        let wide = u128::from(hash ^ word) * u128::from(0x9e37_79b9_7f4a_7c15u64);
        wide as u64 ^ (wide >> 64) as u64
    };
    let begun = (key.len() as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let (words, _) = key.as_chunks();
    let hash = words.iter().fold(begun, |hash, eight| fold(hash, *eight));
    // The last eight bytes, which may overlap the previous ones.
    key.last_chunk().map_or(hash, |last| fold(hash, *last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_that_differ_in_one_bit_have_other_names() {
        for length in SHORT + 1..=40 {
            let key = vec![b'a'; length];
            let mut names = std::collections::HashSet::from([hash_of(&key), hash_of(&key[1..])]);
            for bit in 0..8 * length {
                let mut other = key.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(names.insert(hash_of(&other)), "bit {bit} of {length} bytes");
            }
        }
    }

    #[test]
    fn names_of_locks_are_short_and_differ() {
        let of = |tree, key: &[u8]| {
            let mut bytes = [0; LOCK_NAME];
            let length = lock_name(tree, key, &mut bytes);
            bytes[..length].to_vec()
        };
        assert_eq!(of(7, b"ab"), b"\0\0\0\x07ab");
        assert_eq!(of_name(&of(7, b"ab")), Some((7, &b"ab"[..])));
        assert_eq!(of_name(&of(7, &[1; 40])), Some((7, &[1; 4][..])));
        assert_ne!(of(7, b"ab"), of(8, b"ab"));
        let (long, other) = ([1; 40], [[1; 39].as_slice(), &[2]].concat());
        assert!(of(7, &long).len() == LOCK_NAME && of(7, &long) != of(7, &other));
    }
}
