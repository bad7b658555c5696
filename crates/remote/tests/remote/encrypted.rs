//! Connections with TLS, to a server whose certificate a test has signed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork_remote::{AsyncPostgres, Postgres};
use latchwork_store::{Error, ReadOps, ServerFailure, Table, TxnOptions, WriteOps};

use crate::refusals::refused;
use crate::server::Server;
use crate::{Stage, Test};

pub(crate) const TESTS: &[Test] = &[("tls_connections_check_the_certificate", checked)];

const FRUIT: Table<&str, u64> = Table::new("fruit");

/// Runs `openssl` in a folder; returns whether it succeeds.
fn openssl(folder: &Path, line: &str) -> bool {
    let mut command = Command::new("openssl");
    command.args(line.split_whitespace()).current_dir(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|done| done.success())
}

/// A new authority, NAME.crt and NAME.key.
fn authority(folder: &Path, name: &str) {
    let line = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key \
         -out {name}.crt -subj /CN={name} -days 2"
    );
    assert!(openssl(folder, &line), "openssl {line}");
}

/// Gives the server a certificate for localhost, signed by `authority`.
fn certify(server: &Server, folder: &Path, authority: &str, days: i32) {
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost").unwrap();
    let request = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
                   -keyout server.key -out server.csr -subj /CN=localhost";
    let sign = format!(
        "x509 -req -in server.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial \
         -days {days} -out server.crt -extfile names"
    );
    assert!(openssl(folder, request) && openssl(folder, &sign), "openssl {sign}");
    for name in ["server.key", "server.crt"] {
        server.write(name, &fs::read_to_string(folder.join(name)).unwrap());
    }
    let key = server.folder.join("data/server.key");
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
}

fn restart(server: &mut Server) {
    server.stop(libc::SIGQUIT);
    server.start();
}

fn checked(stage: &mut Stage) {
    let folder: PathBuf = std::env::temp_dir().join(format!("lwtls-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    if !openssl(&folder, "version") {
        println!("SKIPPED: no `openssl` to sign certificates with");
        return;
    }
    authority(&folder, "ours");
    authority(&folder, "other");
    let mut server = Server::create(&stage.bin, "tls");
    certify(&server, &folder, "ours", 2);
    server.write("postgresql.conf", "ssl = on\n");
    server.write("pg_hba.conf", "local all all trust\nhostssl all all 127.0.0.1/32 trust\n");
    server.start();
    let address = |port: u16, host: &str, mode: &str, authority: &str| {
        let path = folder.join(authority).display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}&sslrootcert={path}.crt")
    };
    let port = server.port;
    for mode in ["verify-full", "require", "prefer"] {
        let db = Postgres::open(&address(port, "localhost", mode, "ours")).unwrap();
        db.write(|tx| tx.update(&FRUIT, "pear", |old| Some(old.unwrap_or(0) + 1))).unwrap();
        let encrypted = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a \
                         USING (pid) WHERE a.application_name = 'latchwork'";
        assert_eq!(server.sql(encrypted), "t", "{mode}");
    }
    refusals(port, stage.server.port, &address);
    let db = Postgres::open(&address(port, "localhost", "verify-full", "ours")).unwrap();
    waits_end(&server, &db);
    tasks(&address(port, "localhost", "verify-full", "ours"));
    // A server that crashes does not say good-bye: the transaction runs again.
    let mut runs = 0;
    db.write(|tx| {
        runs += 1;
        let old = tx.get_for_update(&FRUIT, "pear")?.unwrap();
        if runs == 1 {
            restart(&mut server);
        }
        tx.put(&FRUIT, "pear", old + 1)?;
        tx.get(&FRUIT, "fig")
    })
    .unwrap();
    assert_eq!((runs, db.get(&FRUIT, "pear").unwrap()), (2, Some(4)));
    // A certificate that has expired.
    certify(&server, &folder, "ours", -1);
    restart(&mut server);
    let expired = Postgres::open(&address(port, "localhost", "require", "ours"));
    assert_eq!(refused(expired), ServerFailure::Tls);
    drop(server);
    fs::remove_dir_all(&folder).unwrap();
}

/// `plain`: the port of a server without TLS.
fn refusals(port: u16, plain: u16, address: &dyn Fn(u16, &str, &str, &str) -> String) {
    let tls = |address: &str, says: &str| match Postgres::open(address) {
        Err(Error::Server(why)) if why.kind == ServerFailure::Tls => {
            assert!(why.message.contains(says), "{why}");
        }
        other => panic!("{address}: {other:?}"),
    };
    for mode in ["verify-full", "require", "prefer"] {
        tls(&address(port, "localhost", mode, "other"), "UnknownIssuer");
        tls(&address(port, "127.0.0.1", mode, "ours"), "not valid for name");
    }
    // The authorities of the system did not sign it.
    tls(&format!("postgres://postgres@localhost:{port}/postgres?sslmode=require"), "UnknownIssuer");
    tls(&address(plain, "localhost", "require", "ours"), "does not support TLS");
    Postgres::open(&address(plain, "localhost", "prefer", "ours")).unwrap();
    let unencrypted = Postgres::open(&address(port, "localhost", "disable", "ours"));
    assert_eq!(refused(unencrypted), ServerFailure::Credentials);
    let missing = Postgres::open(&address(port, "localhost", "require", "missing"));
    assert_eq!(refused(missing), ServerFailure::Address);
    let unknown = Postgres::open(&address(port, "localhost", "verify-some", "ours"));
    assert_eq!(refused(unknown), ServerFailure::Address);
}

/// The server ends a statement that waits for a lock when its client's time is over.
fn waits_end(server: &Server, db: &Postgres) {
    let options = TxnOptions { time: Duration::from_millis(200), ..TxnOptions::default() };
    db.write(|tx| {
        tx.get_for_update(&FRUIT, "pear")?;
        let late = db.write_with(&options, |tx| tx.get_for_update(&FRUIT, "pear"));
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        assert_eq!(server.sql(waiting), "0", "the server still waits");
        Ok(())
    })
    .unwrap();
}

fn tasks(address: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(async {
        let db = AsyncPostgres::open(address).await?;
        db.get(&FRUIT, "pear").await
    });
    assert_eq!(read.unwrap(), Some(3));
}
