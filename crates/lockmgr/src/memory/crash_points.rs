//! Crash points: places where tests kill the process. Without the feature `points` they compile to
//! nothing.

/// Reports that the thread has reached a crash point.
#[inline(always)]
pub(crate) fn point(name: &'static str) {
    #[cfg(feature = "points")]
    hook::call(name);
    let _ = name;
}

#[cfg(feature = "points")]
pub(crate) mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(&'static str)> = OnceLock::new();

    /// Sets the function that is called at each crash point of this process from now on.
    pub fn set_point_hook(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    pub(super) fn call(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}
