//! A PostgreSQL server in a folder of its own, on a Unix socket and on loopback.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. It ends with this process.
pub(crate) struct Server {
    pub(crate) folder: PathBuf,
    pub(crate) port: u16,
    bin: PathBuf,
    child: Option<Child>,
}

/// The folder of the server's programs, the newest version first.
pub(crate) fn programs() -> Option<PathBuf> {
    let all = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut all: Vec<_> = all.map(|version| version.path().join("bin")).collect();
    all.retain(|bin| bin.join("postgres").exists() && bin.join("initdb").exists());
    all.sort();
    all.pop()
}

/// The user that runs the server: it refuses to be run by root.
fn user() -> Option<(u32, u32)> {
    // SAFETY: the call has no precondition.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let of = |name: &str| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(of("postgres").or_else(|| of("nobody")).expect("a user that is not root"))
}

/// Has the kernel end this process when the thread ends that has started it.
fn ends_with_parent() -> std::io::Result<()> {
    // SAFETY: the call reads no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGQUIT) };
    Ok(())
}

fn run(mut command: Command) {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
}

impl Server {
    fn command(bin: &Path, program: &str) -> Command {
        let mut command = Command::new(bin.join(program));
        if let Some((uid, gid)) = user() {
            command.uid(uid).gid(gid);
        }
        command.current_dir("/");
        command
    }

    /// Creates a server's files. A standby waits for a primary server without end.
    pub(crate) fn create(bin: &Path, name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lwpg-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        if let Some((uid, gid)) = user() {
            std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut initdb = Self::command(bin, "initdb");
        initdb.arg("-D").arg(folder.join("data"));
        initdb.args(["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]);
        run(initdb);
        let server = Self { folder, port, bin: bin.to_owned(), child: None };
        let rules = "local all locked scram-sha-256\nhost all locked all scram-sha-256\n\
                     local all late scram-sha-256\nlocal all all trust\n\
                     host all all 127.0.0.1/32 trust\n";
        server.write("pg_hba.conf", rules);
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             fsync = off\nmax_connections = 100\nshared_buffers = 64MB\nautovacuum = off\n\
             max_wal_size = 256MB\n",
            server.folder.display()
        );
        server.write("postgresql.auto.conf", &settings);
        server
    }

    /// Writes a file of the server.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.folder.join("data").join(name);
        fs::write(&path, text).unwrap();
        if let Some((uid, gid)) = user() {
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
    }

    /// Starts it, and returns when it takes connections.
    pub(crate) fn start(&mut self) {
        let mut command = Self::command(&self.bin, "postgres");
        command.arg("-D").arg(self.folder.join("data"));
        let log = fs::File::create(self.folder.join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
        // SAFETY: the function makes one system call, which is safe between fork and exec.
        unsafe { command.pre_exec(ends_with_parent) };
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while !self.is_ready() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let waits = begun.elapsed() < Duration::from_secs(20);
            let runs = child.try_wait().unwrap().is_none();
            assert!(waits && runs, "the server does not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child = Some(child);
    }

    fn is_ready(&self) -> bool {
        let mut command = Self::command(&self.bin, "pg_isready");
        command.arg("-q").arg("-h").arg(&self.folder).arg("-p").arg(self.port.to_string());
        command.status().unwrap().success()
    }

    /// Ends it by a signal: SIGQUIT is a crash, SIGINT rolls transactions back.
    pub(crate) fn stop(&mut self, signal: i32) {
        if let Some(mut child) = self.child.take() {
            // SAFETY: it is a child of this process that was not waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
            child.wait().unwrap();
        }
    }

    /// The address of a database, with a schema of its own.
    pub(crate) fn address(&self, user: &str, schema: &str) -> String {
        let folder = self.folder.to_str().unwrap().replace('/', "%2F");
        format!(
            "postgres://{user}@{folder}:{}/postgres?options=-c%20search_path%3D{schema}",
            self.port
        )
    }

    /// Runs SQL as the server's owner; returns what it prints.
    pub(crate) fn sql(&self, text: &str) -> String {
        let mut command = Self::command(&self.bin, "psql");
        command.arg("-h").arg(&self.folder).arg("-p").arg(self.port.to_string());
        command.args([
            "-U",
            "postgres",
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            text,
        ]);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{text}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// A schema that is new; returns the address of it.
    pub(crate) fn fresh(&self, name: &str) -> String {
        self.sql(&format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}"));
        self.address("postgres", name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(libc::SIGQUIT);
        let _ = fs::remove_dir_all(&self.folder);
    }
}
