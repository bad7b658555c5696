//! Names of tables by tree, as read by a process that has not opened the store.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use latchwork_machine::ConstMachine;
use latchwork_pool::Pool;
use latchwork_tree::Node;

use crate::open::open_file;
use crate::tables::{CATALOG, INNER, as_shown, root_of};

/// The limit of pages that are read.
const PAGES_MAX: u32 = 10_000;

/// Reads the names of tables. Tables are missing if a page of the catalog cannot be read because a
/// thread changes it. Pages that are not in the pool are read from the file `data`.
pub(super) fn tables<M: ConstMachine>(pool: &Pool<M>, data: Option<&Path>) -> HashMap<u32, String> {
    let mut tables = HashMap::new();
    let _ = read(pool, data, &mut tables);
    tables
}

/// Reads the catalog's leaves; `None` if a page cannot be read.
fn read<M: ConstMachine>(
    pool: &Pool<M>,
    data: Option<&Path>,
    tables: &mut HashMap<u32, String>,
) -> Option<()> {
    let mut number = u64::from(CATALOG);
    for _ in 0..PAGES_MAX {
        let words = page(pool, data, number)?;
        let node = Node::of(&words[..])?;
        if node.level() > 0 {
            number = node.first_child()?;
            continue;
        }
        for index in 0..node.count() {
            let key = node.key(index)?;
            if key.starts_with(INNER) {
                return Some(());
            }
            if node.is_ghost(index)? {
                continue;
            }
            if let Ok(tree) = root_of(&node.value(index)?) {
                let name = String::from_utf8_lossy(&key).into_owned();
                tables.insert(tree, as_shown(&name).unwrap_or(name));
            }
        }
        number = node.right()??;
    }
    None
}

/// Returns the words of a page.
fn page<M: ConstMachine>(pool: &Pool<M>, data: Option<&Path>, number: u64) -> Option<Vec<u64>> {
    let (file, _) = pool.files().ok()?.into_iter().next()?;
    let read = pool.looker().read(file, number, |page| {
        let mut words = vec![0; page.len()];
        page.copy(0, &mut words).map(|()| words)
    });
    if let Ok(words) = read {
        return Some(words);
    }
    let mut bytes = vec![0; file.page_bytes() as usize];
    let at = number.checked_mul(bytes.len() as u64)?;
    open_file(data?).ok()?.read_exact_at(&mut bytes, at).ok()?;
    latchwork_pool::sound(number, &bytes).ok()?;
    let (words, _) = bytes.as_chunks();
    Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
