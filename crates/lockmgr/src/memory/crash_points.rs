//! Places where tests kill. Without the feature `points` they are nothing.

/// Says that the thread has come to a place.
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

    /// Has `hook` called at each place, from now on, in this process.
    pub fn set_point_hook(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    pub(super) fn call(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}
