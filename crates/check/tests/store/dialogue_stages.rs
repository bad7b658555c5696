//! The engines in which dialogues run: in memory, and a store on files with threads or processes as
//! roles.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use latchwork_check::again;
use latchwork_check::memory_engine::{Bug, Memory};
use latchwork_lockmgr::{Manager, View, granular};
use latchwork_machine::Shared;
use latchwork_region::Region;
use latchwork_store::{Mode, Options, Store};

use crate::dialogue::{Dialogue, Level, Role, Stage};
use crate::roles::{Lines, OTHERS, ROWS, act_in, act_in_memory, is_of_stores_alone, set_in_memory};

/// A role's name, used in its owner's label.
fn label(role: char) -> &'static str {
    const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
    let at = role as usize - 'a' as usize;
    &LETTERS[at..=at]
}

/// Returns whether the owner with this label waits.
fn is_waiting<M: latchwork_machine::ConstMachine>(view: &View<M>, role: char) -> bool {
    let Ok(seen) = view.look() else { return false };
    seen.rows.iter().any(|row| row.wanted.is_some() && row.label == label(role))
}

/// A role that is a thread.
fn thread_role(act: impl FnOnce(&mut Lines<'_>) + Send + 'static) -> Role {
    let (tell, told): (Sender<String>, Receiver<String>) = channel();
    let (say, heard) = channel();
    let thread = thread::spawn(move || {
        let mut next = || told.recv().unwrap_or_else(|_| "end".to_owned());
        let mut say = |answer: &str| drop(say.send(answer.to_owned()));
        act(&mut Lines { next: &mut next, say: &mut say });
    });
    Role {
        tell: Box::new(move |line| drop(tell.send(line.to_owned()))),
        heard,
        gone: Box::new(move || thread.join().expect("the role has panicked")),
        kill: None,
    }
}

/// The engine in memory with one lock manager, or with one for each role so that no lock blocks.
pub(crate) struct InMemory {
    bug: Bug,
    memory: RefCell<Arc<Memory>>,
    manager: Arc<Manager>,
    view: View,
}

impl InMemory {
    pub(crate) fn new(bug: Bug) -> Self {
        let manager = Arc::new(Manager::private(granular::modes()).unwrap());
        let view = View::new(manager.region().clone()).unwrap().unwrap();
        Self { bug, memory: RefCell::new(Arc::new(Memory::new(bug))), manager, view }
    }
}

impl Stage for InMemory {
    fn set(&self) {
        *self.memory.borrow_mut() = Arc::new(Memory::new(self.bug));
        set_in_memory(&self.memory.borrow(), &self.manager.session().unwrap());
    }

    fn can(&self, dialogue: &Dialogue) -> bool {
        !dialogue.lines.iter().any(|line| is_of_stores_alone(&line.step))
    }

    fn enter(&self, role: char, level: Level) -> Role {
        let (memory, slot) = (self.memory.borrow().clone(), u16::from(role as u8 - b'a') + 1);
        let manager = match level {
            Level::Unlocked => Arc::new(Manager::private(granular::modes()).unwrap()),
            _ => self.manager.clone(),
        };
        thread_role(move |lines| {
            let session = manager.session().unwrap();
            act_in_memory((&memory, &session, slot), label(role), level, lines);
        })
    }

    fn waits(&self, role: char) -> bool {
        is_waiting(&self.view, role)
    }
}

/// A store on files whose roles are threads of this process, or processes.
pub(crate) struct OnFiles {
    path: PathBuf,
    store: Option<Store>,
    view: View<Shared>,
    processes: bool,
}

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.sizes.cache = 2 << 20;
    options.sizes.log_buffer = 1 << 20;
    options.sizes.log_segment = 4 << 20;
    options.sizes.threads = 64;
    options.sizes.mode = Mode::None;
    options
}

/// The region of an open store, whose path is in the second line of the file `region`.
pub(crate) fn region_of(path: &std::path::Path) -> PathBuf {
    let text = std::fs::read_to_string(path.join("region")).unwrap();
    PathBuf::from(text.lines().nth(1).unwrap()).join("region")
}

impl OnFiles {
    pub(crate) fn new(name: &str, processes: bool) -> Self {
        Self::with(name, processes, &options())
    }

    pub(crate) fn with(name: &str, processes: bool, options: &Options) -> Self {
        let path = std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let store = Some(Store::open_with(&path, options).unwrap());
        let region = latchwork_region::Options::default();
        let region = Region::<Shared>::view(region_of(&path), &region).unwrap();
        let view = View::new(region).unwrap().unwrap();
        Self { path, store, view, processes }
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open until the drop")
    }
}

impl Drop for OnFiles {
    fn drop(&mut self) {
        drop(self.store.take());
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Stage for OnFiles {
    fn set(&self) {
        let set = self.store().write(|tx| {
            tx.remove_range(&ROWS, ..)?;
            tx.remove_range(&OTHERS, ..)?;
            tx.put(&ROWS, 1, 10)?;
            tx.put(&ROWS, 2, 20)
        });
        set.unwrap();
    }

    fn can(&self, dialogue: &Dialogue) -> bool {
        dialogue.lowest() > Level::Unlocked
    }

    fn enter(&self, role: char, level: Level) -> Role {
        assert!(level != Level::Unlocked, "a store has no such level");
        if self.processes {
            return process_role(&self.path, role, level);
        }
        let store = self.store().clone();
        thread_role(move |lines| act_in(&store, label(role), level, lines))
    }

    fn waits(&self, role: char) -> bool {
        is_waiting(&self.view, role)
    }

    fn clear(&self) {
        for prepared in self.store().prepared().unwrap() {
            self.store().roll_back_prepared(&prepared.gid).unwrap();
        }
    }
}

/// The program of a role: this test program, or a program that tests another interface of the store
/// (`crates/capi/tests/role.c`).
fn role_program() -> Command {
    match std::env::var_os("LATCHWORK_ROLE_PROGRAM") {
        Some(program) => Command::new(program),
        None => again(module_path!(), "child"),
    }
}

/// A role that is a process.
fn process_role(path: &std::path::Path, role: char, level: Level) -> Role {
    let mut child = role_program()
        .env("LATCHWORK_ROLE", role.to_string())
        .env("LATCHWORK_LEVEL", level.name())
        .env("LATCHWORK_STORE", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let from = BufReader::new(child.stdout.take().unwrap());
    let (say, heard) = channel();
    let reader = thread::spawn(move || {
        // The test harness writes to the same stream.
        for line in from.lines().map_while(Result::ok) {
            if let Some(answer) = line.strip_prefix("> ") {
                let _ = say.send(answer.to_owned());
            }
        }
    });
    let pid = child.id() as i32;
    Role {
        tell: Box::new(move |line| drop(writeln!(to, "{line}"))),
        heard,
        gone: Box::new(move || {
            // A killed process has no exit code.
            let code = child.wait().unwrap().code();
            assert!(code.is_none_or(|code| code == 0), "the role has failed");
            reader.join().unwrap();
        }),
        // SAFETY: a child process that has not been waited for.
        kill: Some(Box::new(move || assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0))),
    }
}

/// The process of a role. Does nothing when run as a test.
#[test]
fn child() {
    let Some(path) = std::env::var_os("LATCHWORK_STORE") else { return };
    let role = std::env::var("LATCHWORK_ROLE").unwrap().chars().next().unwrap();
    let level = std::env::var("LATCHWORK_LEVEL").unwrap().parse().unwrap();
    let store = Store::open_with(path, &options()).unwrap();
    // The harness may have begun a line.
    println!();
    let mut next = || {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            Ok(1..) => line.trim_end().to_owned(),
            _ => "end".to_owned(),
        }
    };
    let mut say = |answer: &str| println!("> {answer}");
    act_in(&store, label(role), level, &mut Lines { next: &mut next, say: &mut say });
}
