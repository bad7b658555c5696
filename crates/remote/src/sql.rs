//! The statements, in the dialect that PostgreSQL, CockroachDB and YugabyteDB share.
//!
//! Two SQL tables hold everything. `latchwork_records` has the records of all our tables, by the
//! number of the table and the bytes of the key; `latchwork_tables` has the name, the types and the
//! schema version of each. `bytea` compares bytewise, so keys are in the order of the store.
//!
//! The number of a table is a hash of its name, so no counter is shared by programs that create
//! tables, and a transaction that reads a table before it exists locks the range where its records
//! will be. Programs create tables by inserting a row: schema changes, which the engines treat
//! differently inside transactions, happen only when the first program opens the database.
//!
//! `docs/postgres.md` lists the pages of the three manuals for each statement.

use tokio_postgres::types::Type;

/// The format of the two tables.
pub(crate) const FORMAT: i64 = 1;

/// The statements that create the tables.
pub(crate) const CREATE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS latchwork_tables (tree BIGINT NOT NULL, name BYTEA NOT NULL, \
     key_type TEXT, value_type TEXT, version BIGINT NOT NULL, PRIMARY KEY (tree))",
    "CREATE TABLE IF NOT EXISTS latchwork_records (tree BIGINT NOT NULL, key BYTEA NOT NULL, \
     value BYTEA NOT NULL, PRIMARY KEY (tree, key))",
];

/// Lists the columns of tables of our names, those of a primary key first by their place.
pub(crate) const COLUMNS: &str = "SELECT c.table_name, c.column_name, c.data_type, \
     c.is_nullable, coalesce(k.ordinal_position, 0) FROM information_schema.columns c \
     LEFT JOIN information_schema.table_constraints t ON t.table_schema = c.table_schema \
     AND t.table_name = c.table_name AND t.constraint_type = 'PRIMARY KEY' \
     LEFT JOIN information_schema.key_column_usage k ON k.table_schema = t.table_schema \
     AND k.table_name = t.table_name AND k.constraint_name = t.constraint_name \
     AND k.column_name = c.column_name \
     WHERE c.table_schema = current_schema() \
     AND c.table_name IN ('latchwork_records', 'latchwork_tables') \
     ORDER BY 1, 2";

/// What [`COLUMNS`] returns for tables that are ours.
pub(crate) const OURS: [[&str; 5]; 8] = [
    ["latchwork_records", "key", "bytea", "NO", "2"],
    ["latchwork_records", "tree", "bigint", "NO", "1"],
    ["latchwork_records", "value", "bytea", "NO", "0"],
    ["latchwork_tables", "key_type", "text", "YES", "0"],
    ["latchwork_tables", "name", "bytea", "NO", "0"],
    ["latchwork_tables", "tree", "bigint", "NO", "1"],
    ["latchwork_tables", "value_type", "text", "YES", "0"],
    ["latchwork_tables", "version", "bigint", "NO", "0"],
];

/// Begins a transaction that may write.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE";
/// Begins a read-only transaction.
pub(crate) const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY";

macro_rules! statements {
    ($($name:ident $types:tt $sql:expr;)*) => {
        /// A statement that each connection has prepared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Sql {
            $($name,)*
        }

        impl Sql {
            /// All of them: their text, and the types of their parameters.
            pub(crate) const ALL: &[(&str, &[Type])] = &[$(($sql, &$types),)*];
        }
    };
}

const LONG: Type = Type::INT8;
const BYTES: Type = Type::BYTEA;
const MANY: Type = Type::BYTEA_ARRAY;
const TEXT: Type = Type::TEXT;

statements! {
    Get [LONG, BYTES] "SELECT value FROM latchwork_records WHERE tree = $1 AND key = $2";
    GetForUpdate [LONG, BYTES]
        "SELECT value FROM latchwork_records WHERE tree = $1 AND key = $2 FOR UPDATE";
    // Not `key = ANY($2)`: without statistics PostgreSQL then reads all records of a small table,
    // and locks them.
    GetMany [LONG, MANY]
        "SELECT k, (SELECT value FROM latchwork_records WHERE tree = $1 AND key = k) \
         FROM unnest($2) AS k";
    Put [LONG, BYTES, BYTES]
        "INSERT INTO latchwork_records (tree, key, value) VALUES ($1, $2, $3) \
         ON CONFLICT (tree, key) DO UPDATE SET value = excluded.value";
    Insert [LONG, BYTES, BYTES]
        "INSERT INTO latchwork_records (tree, key, value) VALUES ($1, $2, $3) \
         ON CONFLICT (tree, key) DO NOTHING";
    Remove [LONG, BYTES] "DELETE FROM latchwork_records WHERE tree = $1 AND key = $2";
    ScanFrom [LONG, BYTES, LONG]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 AND key >= $2 \
         ORDER BY key LIMIT $3";
    ScanBetween [LONG, BYTES, LONG, BYTES]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 AND key >= $2 AND key < $4 \
         ORDER BY key LIMIT $3";
    BackFrom [LONG, BYTES, LONG]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 AND key >= $2 \
         ORDER BY key DESC LIMIT $3";
    BackBetween [LONG, BYTES, LONG, BYTES]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 AND key >= $2 AND key < $4 \
         ORDER BY key DESC LIMIT $3";
    FirstForUpdate [LONG]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 ORDER BY key LIMIT 1 FOR UPDATE";
    LastForUpdate [LONG]
        "SELECT key, value FROM latchwork_records WHERE tree = $1 ORDER BY key DESC LIMIT 1 \
         FOR UPDATE";
    CountFrom [LONG, BYTES]
        "SELECT count(*) FROM latchwork_records WHERE tree = $1 AND key >= $2";
    CountBetween [LONG, BYTES, BYTES]
        "SELECT count(*) FROM latchwork_records WHERE tree = $1 AND key >= $2 AND key < $3";
    RemoveFrom [LONG, BYTES] "DELETE FROM latchwork_records WHERE tree = $1 AND key >= $2";
    RemoveBetween [LONG, BYTES, BYTES]
        "DELETE FROM latchwork_records WHERE tree = $1 AND key >= $2 AND key < $3";
    Table [LONG]
        "SELECT name, key_type, value_type, version FROM latchwork_tables WHERE tree = $1";
    AddTable [LONG, BYTES, TEXT, TEXT, LONG]
        "INSERT INTO latchwork_tables (tree, name, key_type, value_type, version) \
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tree) DO NOTHING";
    TypeTable [LONG, TEXT, TEXT, LONG]
        "UPDATE latchwork_tables SET key_type = $2, value_type = $3, version = $4 WHERE tree = $1";
    Tables []
        "SELECT name, key_type, value_type, version FROM latchwork_tables WHERE tree <> 0 \
         ORDER BY name";
}

/// The number of a table: FNV-1a of its name, in 64 bits. 0 is the row of the format.
pub(crate) fn tree_of(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1) as i64
}
