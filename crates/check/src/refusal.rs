//! Makes the system refuse a call to this thread, like a sandbox or a file system without the
//! feature.

/// A refused call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The number of the call.
    pub number: i64,
    /// The index of an argument and bits of its low half: a call with any of them set is refused.
    /// `None` refuses every call.
    pub only: Option<(u32, u32)>,
}

/// From now on this thread and its children get `errno` from the call.
///
/// # Panics
///
/// If the system has no filters (`seccomp`).
pub fn refuse(call: Call, errno: i32) {
    let instruction = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: u32| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    // Offsets in the filter's data: the number is first, and the arguments are words of 8 bytes
    // from 16 on.
    let (place, bits) = call.only.unwrap_or((0, 0));
    let any = if call.only.is_some() { libc::BPF_JSET } else { libc::BPF_JA };
    let mut program = [
        load(0),
        libc::sock_filter {
            jf: 3,
            ..instruction(libc::BPF_JMP | libc::BPF_JEQ, call.number as u32)
        },
        load(16 + place * 8),
        libc::sock_filter { jf: 1, ..instruction(libc::BPF_JMP | any, bits) },
        instruction(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a flag of this thread.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: a filter for this thread, which the call copies.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
