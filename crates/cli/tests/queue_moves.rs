//! The queue of the guide moves to a server and back, by its programs: two commands, and another
//! address. A second copy of the program works on the source during each move.

#[allow(dead_code)]
#[path = "../../remote/tests/remote/server.rs"]
mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a program prints, which must succeed.
fn prints(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {} {}", text(&stdout), text(&stderr));
    text(&stdout)
}

/// The example `queue`, which `cargo test --workspace` builds next to this program.
fn example() -> Option<PathBuf> {
    let latchwork = Path::new(env!("CARGO_BIN_EXE_latchwork"));
    Some(latchwork.with_file_name("examples").join("queue")).filter(|path| path.exists())
}

struct Queue {
    program: PathBuf,
}

impl Queue {
    fn run(&self, address: &str, what: &[&str]) -> String {
        prints(Command::new(&self.program).arg(address).args(what))
    }

    /// How many jobs are left, and how many are done.
    fn counts(&self, address: &str) -> (u64, u64) {
        let said = self.run(address, &[]);
        let mut numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Moves from one address to the other with one command, while a second copy of the program
    /// works on the source. Returns how many jobs the target has.
    fn moves(&self, from: &str, to: &str) -> u64 {
        let (ends, put) = (AtomicBool::new(false), AtomicU64::new(0));
        let jobs = |(left, done): (u64, u64)| left + done;
        let before = jobs(self.counts(from));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    self.run(from, &["put", "write a letter"]);
                    put.fetch_add(1, Relaxed);
                    self.run(from, &["work"]);
                }
            });
            // The second copy is at work when the move begins.
            while put.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            let latchwork = env!("CARGO_BIN_EXE_latchwork");
            let said = prints(Command::new(latchwork).args(["store", "copy", from, to]));
            ends.store(true, Relaxed);
            assert!(said.contains("copied and compared"), "{said}");
        });
        // The target is one snapshot of the source, which goes on.
        let (source, moved) = (self.counts(from), jobs(self.counts(to)));
        assert_eq!(source, (0, before + put.load(Relaxed)), "the second copy lost a job");
        assert!((before + 1..=jobs(source)).contains(&moved), "{moved} of {source:?}");
        moved
    }
}

#[test]
fn a_queue_moves_to_a_server_and_back() {
    let (Some(bin), Some(program)) = (server::programs(), example()) else {
        eprintln!(
            "SKIPPED: no PostgreSQL server in /usr/lib/postgresql, or no example `queue` next to \
             this program; install `postgresql`; cargo build -p latchwork-remote --examples"
        );
        return;
    };
    let queue = Queue { program };
    let mut server = server::Server::create(&bin, "queue");
    server.start();
    let folder = std::env::temp_dir().join(format!("queue-moves-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let (home, back) = (folder.join("jobs"), folder.join("back"));
    let (home, back) = (home.to_str().unwrap(), back.to_str().unwrap());
    for job in 0..5 {
        queue.run(home, &["put", &format!("job {job}")]);
    }
    let address = server.fresh("queue");
    let moved = queue.moves(home, &address);
    queue.run(&address, &["put", "on the server"]);
    assert!(queue.run(&address, &["work"]).contains("did: on the server"));
    assert_eq!(queue.counts(&address), (0, moved + 1));
    let returned = queue.moves(&address, back);
    queue.run(back, &["put", "at home"]);
    assert!(queue.run(back, &["work"]).contains("did: at home"));
    assert_eq!(queue.counts(back), (0, returned + 1));
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}
