//! Places where tests kill a thread. Without the feature `points` they have no effect.

/// Reports that the thread has reached a place.
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

    /// Installs `hook`, which is called at each place in this process from now on.
    pub fn set_point_hook(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    pub(super) fn call(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}
