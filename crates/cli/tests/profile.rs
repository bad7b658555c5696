//! What `profile` tells of a program.

mod rig;

use std::fs;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::process::{Command, Output};

use rig::{compile, folder, latchwork, run};
use serde_json::Value;

const HOT: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *hot_spot(void *a) {
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&m);
        usleep(50);
        pthread_mutex_unlock(&m);
    }
    return a;
}
int main(int c, char **v) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, hot_spot, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    if (c > 1) sleep(atoi(v[1]));
    _exit(3);
}
";

#[test]
fn a_profile_names_the_hot_spot_even_after_an_exit_in_haste() {
    let folder = folder("hot");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    for latch in ["shfl", "shfl-spin", "lw", "glibc"] {
        let output = run(&["profile", "--latch", latch, "--", &program]);
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("hot_spot hot.c:8") && text.contains("800"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let file = folder.join("report");
    let to = file.to_str().unwrap();
    let output = run(&["profile", "--json", "-o", to, "--", &program]);
    assert!(output.stderr.is_empty(), "{output:?}");
    let rows: Vec<serde_json::Value> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(row("latch")["acquisitions"], 800);
    assert_eq!(row("site")["function"], "hot_spot");
    assert!(row("site")["contended"].as_u64().unwrap() > 0);
    assert!(row("site")["wait_p50_ns"].as_u64() <= row("site")["wait_max_ns"].as_u64());
    assert_eq!(row("process")["exe"], program.as_str());
}

#[test]
fn only_one_program_is_recorded() {
    let folder = folder("only");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let line = format!("{program}; true");
    let said = |only: &str, line: &str| {
        let output = run(&["profile", "--only", only, "--", "sh", "-c", line]);
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said("hot", &line).contains("hot_spot"));
    let idle = said("sh", &line);
    assert!(idle.contains("0 locks seen in ") && !idle.contains("hot"), "{idle}");
    // What a program is called as counts as much as its file.
    let alias = folder.join("alias");
    std::os::unix::fs::symlink(&program, &alias).unwrap();
    assert!(said("alias", &format!("{}; true", alias.display())).contains("hot_spot"));
}

#[test]
fn no_locks_are_said_to_be_none_and_what_ran_is_named() {
    let output = run(&["profile", "sleep", "0"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("0 locks seen in sleep: "), "{said}");
    let line = "sleep 0; sleep 0; echo";
    let output = run(&["profile", "--only", "no-such", "--", "sh", "-c", line]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("none of the programs that ran: "), "{said}");
    assert!(said.contains("sleep (2 processes)"), "{said}");
}

/// What is written to a terminal of so many columns.
fn on_terminal(columns: u16, args: &[&str]) -> String {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs, none) = (0, 0, std::ptr::null_mut());
    // SAFETY: two places for descriptors, no name, no modes, and a size.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, none.cast(), &size) };
    assert_eq!(made, 0);
    // SAFETY: both were just opened, and are nobody else's.
    let (ours, theirs) = unsafe { (fs::File::from_raw_fd(ours), fs::File::from_raw_fd(theirs)) };
    let mut command = latchwork();
    let mut child = command.args(args).env("NO_COLOR", "1").stderr(theirs).spawn().unwrap();
    // The command has the other end open, and reading would not end.
    drop(command);
    let mut said = Vec::new();
    // The end is an error: nobody has the other end any more.
    let _ = (&ours).read_to_end(&mut said);
    child.wait().unwrap();
    String::from_utf8(said).unwrap().replace('\r', "")
}

#[test]
fn a_table_has_the_width_of_its_terminal() {
    let folder = folder("width");
    let long = "a_function_with_a_name_that_nobody_would_like_to_type_but_that_tells_all_of_it";
    let program = compile(&folder, "hot", &HOT.replace("hot_spot", long), &[]).unwrap();
    let wide = on_terminal(180, &["profile", "--", &program]);
    assert!(wide.contains(&format!("{long} hot.c:8")), "{wide}");
    let narrow = on_terminal(84, &["profile", "--", &program]);
    let rows: Vec<_> = narrow.lines().filter(|line| line.starts_with("mutex ")).collect();
    assert!(rows.len() >= 2 && rows.iter().all(|line| line.chars().count() <= 84), "{narrow}");
    assert!(narrow.contains("hot.c:8") && !narrow.contains(long), "{narrow}");
}

#[test]
fn nothing_is_cut_in_a_file() {
    let folder = folder("uncut");
    let long = "a_function_with_a_name_that_nobody_would_like_to_type_but_that_tells_all_of_it";
    let program = compile(&folder, "hot", &HOT.replace("hot_spot", long), &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &program]).stderr).unwrap();
    assert!(text.contains(&format!("{long} hot.c:8")), "{text}");
    assert!(text.contains(": 1 latch taken 800 times"), "{text}");
}

/// A name that is in the tables of a program of another kind is enough for a note.
#[test]
fn programs_that_lock_by_other_means_are_noted() {
    let folder = folder("kinds");
    let mark = "__attribute__((section(\".go.buildinfo\"))) int mark = 1;\n";
    let go = compile(&folder, "hello", &format!("{mark}{HOT}"), &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &go]).stderr).unwrap();
    assert!(text.contains("Note: hello is a Go program: "), "{text}");
    if let Some(still) = compile(&folder, "still", &format!("{mark}{HOT}"), &["-static"]) {
        let text = String::from_utf8(run(&["profile", "--", &still]).stderr).unwrap();
        assert!(text.contains("a Go program, statically linked"), "{text}");
    }
    let java = compile(&folder, "java", HOT, &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &java]).stderr).unwrap();
    assert!(text.contains("Note: java is a JVM: "), "{text}");
    let plain = compile(&folder, "hot", HOT, &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &plain]).stderr).unwrap();
    assert!(!text.contains("Note: "), "{text}");
}

/// Runs latchwork with a folder for profiles that nobody else uses.
fn apart(profiles: &Path, args: &[&str]) -> Output {
    latchwork().env("LATCHWORK_FOLDER", profiles).args(args).output().unwrap()
}

#[test]
fn a_watcher_finds_the_program_without_a_number_and_by_its_wrappers() {
    let folder = folder("found");
    let profiles = folder.join("profiles");
    fs::create_dir(&profiles).unwrap();
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let none = apart(&profiles, &["profile", "--watch", "--once"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("is being profiled"));
    let start = |name: &str| {
        let report = folder.join(name);
        let args = ["profile", "-o", report.to_str().unwrap(), "--", &program, "60"];
        latchwork().env("LATCHWORK_FOLDER", &profiles).args(args).spawn().unwrap()
    };
    let seen = |args: &[&str]| {
        let mut text = String::new();
        for _ in 0..300 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let output = apart(&profiles, &[&["profile", "--once", "--watch"], args].concat());
            text = String::from_utf8(output.stdout).unwrap();
            if text.contains("taken 800 times") {
                return;
            }
        }
        panic!("{args:?}: {text}");
    };
    let mut first = start("first");
    seen(&[]);
    seen(&[&first.id().to_string()]);
    let mut second = start("second");
    seen(&[&second.id().to_string()]);
    let many = apart(&profiles, &["profile", "--watch", "--once"]);
    let said = String::from_utf8(many.stderr).unwrap();
    assert!(said.contains("say which: ") && said.matches("(hot)").count() == 2, "{said}");
    for child in [&mut first, &mut second] {
        let kill = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(kill.success() && child.wait().is_ok());
    }
}

#[test]
fn a_folder_without_a_profile_is_an_error() {
    let folder = folder("empty");
    let output = run(&["profile", "--watch", folder.to_str().unwrap(), "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no profile in "), "{output:?}");
}

#[test]
fn what_a_killed_latchwork_left_is_removed() {
    let profiles = folder("swept");
    // SAFETY: it only tells.
    let user = unsafe { libc::geteuid() };
    let made = |name: &str, old: bool| {
        let path = profiles.join(format!("latchwork-{user}-{name}.0"));
        fs::create_dir(&path).unwrap();
        let folder = fs::File::open(&path).unwrap();
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        if old {
            folder.set_modified(then).unwrap();
        }
        (path, folder)
    };
    let (dead, _) = made("1000000001", true);
    let (young, _) = made("1000000002", false);
    let (held, lock) = made("1000000003", true);
    lock.lock().unwrap();
    assert!(apart(&profiles, &["profile", "true"]).status.success());
    assert_eq!([&dead, &young, &held].map(|path| path.exists()), [false, true, true]);
    // The run's own is gone, too.
    assert_eq!(fs::read_dir(&profiles).unwrap().count(), 2);
}

#[test]
fn a_second_terminal_watches() {
    let folder = folder("watch");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let report = folder.join("report");
    let args = ["profile", "-o", report.to_str().unwrap(), "--", &program, "3"];
    let mut child = latchwork().args(args).spawn().unwrap();
    let mut seen = String::new();
    for _ in 0..25 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let Ok(process) = fs::read_to_string(children) else { continue };
        let Some(process) = process.split_whitespace().next() else { continue };
        let output = run(&["profile", "--watch", process, "--once"]);
        seen = String::from_utf8(output.stdout).unwrap();
        if seen.contains("taken 800 times") {
            break;
        }
    }
    assert!(seen.contains("hot_spot hot.c:8") && seen.contains("taken 800 times"), "{seen}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// The rows of a kind that a profile of a program has.
fn rows(args: &[&str], program: &str, kind: &str) -> Vec<Value> {
    let output = run(&[&["profile", "--json"], args, &["--", program]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<_> = all.filter(|row| row["kind"] == kind).collect();
    assert!(!found.is_empty(), "{text}");
    found
}

/// The row of a function.
#[track_caller]
fn of<'a>(rows: &'a [Value], function: &str) -> &'a Value {
    rows.iter().find(|row| row["function"] == function).unwrap_or_else(|| panic!("{rows:#?}"))
}

/// A C++ program without optimisation: `lock_guard` and what it calls are functions.
const GUARDS: &str = r"
#include <mutex>
#include <thread>
#include <unistd.h>
std::mutex jobs_lock;
static struct { long before; std::mutex inner; } state;
std::mutex *made = new std::mutex;
void take_job() {
    std::lock_guard<std::mutex> guard(jobs_lock);
    usleep(50);
}
void put_job() {
    std::unique_lock<std::mutex> guard(jobs_lock);
    usleep(50);
}
void worker(int n) {
    for (int i = 0; i < 100; i++) n % 2 ? take_job() : put_job();
}
int main() {
    state.inner.lock(), state.inner.unlock();
    made->lock(), made->unlock();
    std::thread all[] = {std::thread(worker, 0), std::thread(worker, 1), std::thread(worker, 2)};
    for (auto &one : all) one.join();
}
";

fn compile_guards(folder: &Path) -> String {
    let (source, to) = (folder.join("guards.cpp"), folder.join("guards"));
    fs::write(&source, GUARDS).unwrap();
    let mut command = Command::new("c++");
    command.args(["-g", "-O0", "-pthread", "-o"]).arg(&to).arg(&source);
    assert!(command.status().unwrap().success());
    to.to_str().unwrap().to_owned()
}

#[test]
fn the_line_is_the_programs_own() {
    let program = compile_guards(&folder("guards"));
    let sites = rows(&[], &program, "site");
    for (function, line) in [("take_job()", "guards.cpp:9"), ("put_job()", "guards.cpp:13")] {
        let site = of(&sites, function);
        assert_eq!(site["line"], line);
        // Those that did not wait are known only as callers of the library's function.
        assert!(site["contended"].as_u64().unwrap() > 0 && site["acquisitions"].is_null());
    }
    let counted: u64 = sites.iter().filter_map(|site| site["acquisitions"].as_u64()).sum();
    let waited: u64 = sites.iter().filter_map(|site| site["contended"].as_u64()).sum();
    assert!(counted + waited >= 302, "{sites:#?}");
    // Without stacks it is the library's.
    let sites = rows(&["--depth", "0"], &program, "site");
    assert_eq!(of(&sites, "__gthread_mutex_lock")["acquisitions"], 302);
}

#[test]
fn callers_are_told_as_far_as_asked_for() {
    let program = compile_guards(&folder("callers"));
    let sites = rows(&["--depth", "2"], &program, "site");
    assert_eq!(of(&sites, "take_job()")["callers"][0]["function"], "worker(int)");
    let output = run(&["profile", "--depth", "2", "--", &program]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("take_job() guards.cpp:9") && text.contains("< worker(int)"), "{text}");
}

#[test]
fn latches_have_names() {
    let program = compile_guards(&folder("names"));
    let latches = rows(&[], &program, "latch");
    let names: Vec<_> = latches.iter().map(|latch| latch["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "jobs_lock in guards");
    assert!(names.contains(&"state+8 in guards"), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("heap ")), "{names:?}");
}

/// A library of other people's: no frame pointers, no lines, a frame of a few hundred bytes.
const WRAPPER: &str = r"
#include <pthread.h>
#include <string.h>
int uv_mutex_lock(pthread_mutex_t *m, char *out) {
    volatile char room[300];
    memset((void *)room, 1, sizeof room);
    int error = pthread_mutex_lock(m);
    *out = room[error + 7];
    return error;
}
";

/// The first thread holds the latch while the second waits for it.
const HOG: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
int uv_mutex_lock(pthread_mutex_t *, char *);
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile int held, waits;
__attribute__((noinline)) static void hog(void) {
    pthread_mutex_lock(&m);
    held = 1;
    while (!waits) usleep(1000);
    usleep(200000);
    pthread_mutex_unlock(&m);
}
__attribute__((noinline)) static void victim(void) {
    volatile char here[100] = {0};
    while (!held) usleep(1000);
    waits = 1;
    uv_mutex_lock(&m, (char *)here + 3);
    pthread_mutex_unlock(&m);
    here[1]++;
}
static void *second(void *a) {
    victim();
    return a;
}
int main(void) {
    pthread_t t;
    char out;
    /* The library's call site is known before it is waited at. */
    uv_mutex_lock(&m, &out);
    pthread_mutex_unlock(&m);
    pthread_create(&t, 0, second, 0);
    hog();
    pthread_join(t, 0);
}
";

#[test]
fn a_stack_without_frame_pointers_is_unwound_and_the_holder_is_told() {
    let folder = folder("hog");
    let library = folder.join("libother.so");
    fs::write(folder.join("other.c"), WRAPPER).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"]).arg(&library);
    assert!(cc.arg(folder.join("other.c")).status().unwrap().success());
    let path = folder.to_str().unwrap();
    let (search, run_time) = (format!("-L{path}"), format!("-Wl,-rpath,{path}"));
    let flags = ["-O2", "-fomit-frame-pointer", &search, &run_time, "-lother"];
    let program = compile(&folder, "hog", HOG, &flags).unwrap();
    let sites = rows(&[], &program, "site");
    let (hog, victim) = (of(&sites, "hog"), of(&sites, "victim"));
    assert_eq!((&hog["others_waited"], &victim["contended"]), (&1.into(), &1.into()), "{sites:#?}");
    assert_eq!(hog["others_waited_ns"], victim["wait_total_ns"]);
    assert_eq!(victim["others_waited"], 0);
    let latches = rows(&[], &program, "latch");
    assert_eq!(latches[0]["name"], "m in hog");
    assert_eq!(latches[0]["held_by"]["function"], "hog");
    assert_eq!(latches[0]["function"], "victim");
    let text = String::from_utf8(run(&["profile", "--", &program]).stderr).unwrap();
    assert!(text.contains("waited in victim hog.c:") && text.contains("held by hog hog.c:"));
}

/// A thread waits on a stack of the program's own, hard below memory that may not be read.
const FIBER: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile int waits;
static ucontext_t back, inner;
static void fiber(void) {
    waits = 1;
    pthread_mutex_lock(&m);
    pthread_mutex_unlock(&m);
}
static void *second(void *a) {
    char *stack = mmap(0, 20480, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + 16384, 4096, PROT_NONE);
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = 16384;
    inner.uc_link = &back;
    makecontext(&inner, fiber, 0);
    swapcontext(&back, &inner);
    return a;
}
int main(void) {
    pthread_t t;
    pthread_mutex_lock(&m);
    pthread_create(&t, 0, second, 0);
    while (!waits) usleep(1000);
    usleep(100000);
    pthread_mutex_unlock(&m);
    pthread_join(t, 0);
}
";

#[test]
fn a_stack_ends_where_its_memory_does() {
    let folder = folder("fiber");
    let program = compile(&folder, "fiber", FIBER, &[]).unwrap();
    let sites = rows(&["--depth", "16"], &program, "site");
    assert_eq!(of(&sites, "fiber")["contended"], 1);
}
