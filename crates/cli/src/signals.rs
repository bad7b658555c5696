//! Signals, while we wait for a program.
//!
//! What the terminal sends reaches the program by itself, for it is in our process group; we only
//! must not die of it before we have reported. What is sent to us alone is passed on.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// From the terminal, to the whole group.
const SHARED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
/// From somebody, to us.
const OURS: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// The program; zero while there is none.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// A signal that came before the program was there.
static EARLY: AtomicI32 = AtomicI32::new(0);

extern "C" fn ignore(_: i32) {}

extern "C" fn forward(signal: i32) {
    match PROGRAM.load(SeqCst) {
        0 => EARLY.store(signal, SeqCst),
        // SAFETY: a system call that a handler may make.
        program => unsafe {
            libc::kill(program, signal);
        },
    }
}

/// Installs the handlers. They are not inherited by the program: `exec` resets what is handled.
pub(crate) fn install() {
    let handlers = SHARED.map(|s| (s, ignore as extern "C" fn(i32))).into_iter();
    for (signal, handler) in handlers.chain(OURS.map(|s| (s, forward as extern "C" fn(i32)))) {
        install_one(signal, handler);
    }
}

fn install_one(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: zero is a value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to what it should be.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    // Somebody, nohup perhaps, had it ignored: so it stays, for us and for the program.
    if action.sa_sigaction != libc::SIG_IGN {
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: as above, and both handlers only do what handlers may.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// From now on signals are passed on to this process.
pub(crate) fn forward_to(program: u32) {
    PROGRAM.store(program as i32, SeqCst);
    let early = EARLY.swap(0, SeqCst);
    if early != 0 {
        forward(early);
    }
}

/// The program has ended, and its number may be another's soon.
pub(crate) fn forward_to_nobody() {
    PROGRAM.store(0, SeqCst);
}
