//! Signals during a wait for a program.
//!
//! Signals from the terminal reach the program by themselves, because it is in our process group;
//! this process must only survive them until it has reported. Signals to this process alone are
//! forwarded.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Sent by the terminal to the whole group.
const SHARED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
/// Sent to this process.
const OURS: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// The program; zero while there is none.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// A signal that came before the program started.
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

/// Installs the handlers. The program does not inherit them: `exec` resets handled signals.
pub(crate) fn install() {
    let handlers = SHARED.map(|s| (s, ignore as extern "C" fn(i32))).into_iter();
    for (signal, handler) in handlers.chain(OURS.map(|s| (s, forward as extern "C" fn(i32)))) {
        install_one(signal, handler);
    }
}

fn install_one(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: zero is a value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    // The signal was ignored, for example by nohup: it stays ignored, also for the program.
    if action.sa_sigaction != libc::SIG_IGN {
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: as above, and both handlers only do what handlers may.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Forwards signals to this process from now on.
pub(crate) fn forward_to(program: u32) {
    PROGRAM.store(program as i32, SeqCst);
    let early = EARLY.swap(0, SeqCst);
    if early != 0 {
        forward(early);
    }
}

/// Stops forwarding: the program has ended, and its number may be reused.
pub(crate) fn forward_to_nobody() {
    PROGRAM.store(0, SeqCst);
}
