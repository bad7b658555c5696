//! Tables: names with types, opened once.

use core::ffi::{c_char, c_int};

use latchwork_store::{NAME_MAX, Raw, Table, Type};

use crate::call::{Sized_, call, options_of, place, text_of, too_long};
use crate::codes::lw_code::*;
use crate::error::lw_error;
use crate::failure::Failure;
use crate::handle::{self, kinds};

/// A table: a name, and the types of its keys and values. It belongs to no store and holds nothing
/// of one, so one object serves all stores and threads of a program, also the child of a fork.
#[allow(non_camel_case_types, reason = "it is the name in C")]
pub struct lw_table(());

/// A table as the store sees it from C: bytes.
pub(crate) type Bytes = Table<Raw, Raw>;

kinds! {
    lw_table => Bytes, 2, true;
}

/// How a table is named. Initialise it with `LW_TABLE_OPTIONS_INIT`.
///
/// With both types, the first write to the table records them in the store, and from then on a
/// program, in any language, that names the table with other types gets `LW_TABLE_TYPE`. The types
/// of `docs/types.md` are written as text without spaces: "bytes", "str", "u64", "i64", "f64",
/// "bool", "uuid", "(str,u64)". Keys of such a table are made by `lw_key_encode`; values of numbers
/// are little-endian, and those of "bytes" and "str" are the bytes themselves.
///
/// Without types, keys and values are bytes in the order of `memcmp`, and nothing is recorded or
/// compared: any table can be read in this way.
#[allow(non_camel_case_types, reason = "it is the name in C")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct lw_table_options {
    /// The size of this struct.
    pub size: usize,
    /// The type of keys, or NULL.
    pub key_type: *const c_char,
    /// The type of values, or NULL.
    pub value_type: *const c_char,
    /// The schema version, which a program changes with the meaning of its records. 0.
    pub version: u32,
    /// 0: for later versions.
    pub reserved: u32,
}

impl Sized_ for lw_table_options {
    const INIT: Self = Self {
        size: size_of::<Self>(),
        key_type: core::ptr::null(),
        value_type: core::ptr::null(),
        version: 0,
        reserved: 0,
    };
    const NAME: &'static str = "lw_table_options";

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Creates a table object. The table itself is created in a store by the first write to it. Call
/// it once for each table: the process keeps the name until it ends. `options` may be NULL: a table
/// without types.
///
/// # Errors
///
/// `LW_TOO_LONG` for a name of more than 900 bytes; `LW_OPTIONS` for a type that does not exist, or
/// one type without the other; `LW_MISUSE`.
///
/// # Safety
///
/// `name` and the types end with a zero; the options were initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_table_new(
    name: *const c_char,
    options: *const lw_table_options,
    table: *mut *mut lw_table,
    error: *mut *mut lw_error,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(error, || {
            let table = place(table, core::ptr::null_mut(), "table")?;
            let (name, options) = (text_of(name, "name of a table")?, options_of(options)?);
            if name.len() > NAME_MAX {
                return Err(too_long("table name", name.len(), NAME_MAX));
            }
            let of = Bytes::named(name);
            let of = match (options.key_type.is_null(), options.value_type.is_null()) {
                (true, true) => of,
                (false, false) => {
                    of.described(type_of(options.key_type)?, type_of(options.value_type)?)
                }
                _ => {
                    let text = "a type of keys without one of values, or the other way round";
                    return Err(Failure::Other(LW_OPTIONS, text.to_owned()));
                }
            };
            *table = handle::new(of.with_version(options.version));
            Ok(LW_OK)
        })
    }
}

unsafe fn type_of(at: *const c_char) -> Result<Type, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { text_of(at, "type")? };
    Type::parse(text).ok_or_else(|| {
        Failure::Other(LW_OPTIONS, format!("`{text}` is no type: see docs/types.md"))
    })
}

/// Returns the name of a table, or NULL if the pointer is no table. It lives until the process
/// ends. Never fails. The text does not end with a zero: `*length` is its length.
///
/// # Safety
///
/// The table is NULL or alive; `length` is NULL or a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_table_name(
    table: *const lw_table,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the caller's promise.
    let name = unsafe { handle::shared(table) }.map_or("", |table| table.name());
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *length = name.len() };
    }
    if name.is_empty() { core::ptr::null() } else { name.as_ptr().cast() }
}

/// Frees a table object; the table in the store stays. NULL is allowed.
///
/// # Safety
///
/// The table is NULL or alive, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_table_free(table: *mut lw_table) {
    // SAFETY: the caller's promise.
    let _ = unsafe { handle::free(table) };
}
