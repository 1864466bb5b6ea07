//! Registry of the layouts that words refer to by number.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use slidegate_core::{Policy, Quota};

use super::layout::{Form, Layout};
use super::word::{LAYOUTS, RECORD};

/// Layouts of all quotas that words of this table refer to. It only grows; when it is full, further quotas use records.
pub(super) struct LayoutRegistry {
    by_number: Box<[OnceLock<Box<Layout>>; LAYOUTS]>,
    by_quota: RwLock<HashMap<(Quota, Form), u16>>,
}

impl LayoutRegistry {
    pub(super) fn new() -> Self {
        Self {
            by_number: Box::new(std::array::from_fn(|_| OnceLock::new())),
            by_quota: RwLock::new(HashMap::new()),
        }
    }

    /// Returns the layout of this number; `None` for vacant words and records.
    #[inline(always)]
    pub(super) fn get(&self, number: u16) -> Option<&Layout> {
        self.by_number[usize::from(number) % LAYOUTS].get().map(Box::as_ref)
    }

    /// Returns the layout for a policy of one quota, and registers it if it is new. `None` if the quota has no layout of
    /// this form, or if the registry is full.
    pub(super) fn for_policy(&self, policy: &Policy, form: Form, now_ms: u64) -> Option<&Layout> {
        let quotas = policy.shared_quotas();
        let [quota] = quotas.as_ref() else { return None };
        // Anonymous quotas, which requests can invent, may fill only half, so that named policies find a place.
        let max_layouts = if policy.is_anonymous() { LAYOUTS / 2 } else { usize::from(RECORD) - 1 };
        let (known, is_full) = {
            let by_quota = self.by_quota.read().unwrap_or_else(PoisonError::into_inner);
            (by_quota.get(&(*quota, form)).copied(), by_quota.len() >= max_layouts)
        };
        if known.is_some() || is_full {
            return known.and_then(|number| self.get(number));
        }
        self.add(form, Layout::new(quotas, form, now_ms)?)
    }

    fn add(&self, form: Form, layout: Layout) -> Option<&Layout> {
        let mut by_quota = self.by_quota.write().unwrap_or_else(PoisonError::into_inner);
        let next = u16::try_from(by_quota.len() + 1).ok().filter(|number| *number < RECORD);
        let number = *by_quota.get(&(*layout.quota(), form)).or(next.as_ref())?;
        by_quota.insert((*layout.quota(), form), number);
        Some(self.by_number[usize::from(number)].get_or_init(|| Box::new(layout.numbered(number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn the_registry_is_bounded_and_anonymous_quotas_cannot_fill_it() {
        let layouts = LayoutRegistry::new();
        let quota = |limit: u64| format!("{limit}/1m").parse::<Quota>().unwrap();
        let anonymous = |limit| {
            let policy = Policy::anonymous([quota(limit)]).unwrap();
            layouts.for_policy(&policy, Form::Packed, NOW).map(|layout| layout.number)
        };
        let named = |limit| {
            let policy = Policy::new("api", [quota(limit)]).unwrap();
            layouts.for_policy(&policy, Form::Packed, NOW).map(|layout| layout.number)
        };
        assert_eq!((1..=1500).filter_map(anonymous).count(), LAYOUTS / 2);
        assert_eq!((1501..=3000).filter_map(named).count(), LAYOUTS / 2 - 2);
        assert_eq!((anonymous(1), named(2), anonymous(3000)), (Some(1), Some(2), None));
    }
}
