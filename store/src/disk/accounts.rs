//! The accounts: room and slots.
//!
//! The rules are those of the memory store (`MemoryStore`), to the byte. What is stored is charged for by what stands in the
//! tables, which only the committer changes; writers in progress are charged on top of that, and stand only here, so that
//! the accounts need no more memory than there are writers.
//!
//! The committer changes the accounts together with its transaction, and so before others can see that in the tables. For
//! that time [`Accounts::moving`] says what the tables do not say yet.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Result, StoreError, Usage};

/// Where a writer's content goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) bucket: String,
    pub(super) key: String,
    /// Upload and number, for a part.
    pub(super) part: Option<(String, u16)>,
}

/// What something is charged for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) bytes: u64,
    pub(super) slots: u64,
}

/// What is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    /// Versions, delete markers and uploads.
    pub(super) slots: u64,
    /// Versions that are no delete markers.
    pub(super) objects: u64,
    pub(super) uploads: u64,
}

/// The one writer of a place that is charged only for what it takes more than what it will replace.
#[derive(Debug, Clone, Copy)]
struct Credit {
    bytes: u64,
    /// Bytes of what is there, if anything is.
    there: Option<u64>,
}

impl Credit {
    /// What the writer is charged for. The parts of an upload share its slot.
    fn excess(self, part: bool) -> Charge {
        let slots = (!part && self.there.is_none()).into();
        Charge { bytes: self.bytes.saturating_sub(self.there.unwrap_or(0)), slots }
    }
}

/// The writers of the parts of an upload.
#[derive(Debug, Default)]
struct Writing {
    credits: HashMap<u16, Credit>,
    /// Bytes of the others.
    aside: u64,
    writers: usize,
    ended: Arc<AtomicBool>,
}

impl Writing {
    fn excess(&self) -> u64 {
        self.aside + self.credits.values().map(|credit| credit.excess(true).bytes).sum::<u64>()
    }
}

/// What a writer holds of the accounts.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) place: Place,
    /// Bytes.
    pub(super) bytes: u64,
    /// Slots that it takes by itself: that of a new version.
    slots: u64,
    /// Whether the writer has the credit of its place.
    credited: bool,
    /// Set once the upload has ended whose part is written.
    ended: Option<Arc<AtomicBool>>,
    /// Whether it has been given back.
    released: AtomicBool,
}

impl Claim {
    /// Errors: what is written has nowhere to go any more.
    pub(super) fn check(&self) -> Result<()> {
        match &self.ended {
            Some(ended) if ended.load(Ordering::Relaxed) => Err(StoreError::NoSuchUpload),
            _ => Ok(()),
        }
    }

    /// What it is charged for besides its place.
    fn aside(&self) -> Charge {
        if self.credited { Charge::default() } else { Charge { bytes: self.bytes, slots: self.slots } }
    }
}

/// A change of what is stored, so that it can be taken back if it comes to nothing.
#[derive(Debug)]
pub(super) enum Step {
    /// What a writer may replace: a part, or the version `null`. Bytes before and after.
    Replaced { place: Place, before: Option<u64>, after: Option<u64> },
    /// Anything else is there now: this much.
    Added(Stored),
    /// Anything else is gone: this much.
    Removed(Stored),
}

#[derive(Debug)]
pub(super) struct Accounts {
    capacity: u64,
    slots: u64,
    /// All charges.
    used: Charge,
    objects: u64,
    uploads: u64,
    /// Of objects.
    credits: HashMap<Place, Credit>,
    /// Uploads whose parts are being written.
    writing: HashMap<String, Writing>,
    /// What is there to be replaced, where the transaction has changed it that is not committed yet.
    moving: HashMap<Place, Option<u64>>,
    /// Transactions that have ended.
    generation: u64,
}

impl Accounts {
    pub(super) fn new(capacity: u64, slots: u64, stored: Stored) -> Self {
        Self {
            capacity,
            slots,
            used: Charge { bytes: stored.bytes, slots: stored.slots },
            objects: stored.objects,
            uploads: stored.uploads,
            credits: HashMap::new(),
            writing: HashMap::new(),
            moving: HashMap::new(),
            generation: 0,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        Usage { objects: self.objects, bytes: self.used.bytes, capacity: self.capacity, uploads: self.uploads }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// What is there to be replaced, as far as it is known here.
    pub(super) fn moving(&self, place: &Place) -> Option<Option<u64>> {
        self.moving.get(place).copied()
    }

    fn credit(&self, place: &Place) -> Option<&Credit> {
        match &place.part {
            None => self.credits.get(place),
            Some((upload, number)) => self.writing.get(upload)?.credits.get(number),
        }
    }

    /// Whether a writer of a place is charged only for what it takes more than what it will replace.
    pub(super) fn is_credited(&self, place: &Place) -> bool {
        self.credit(place).is_some()
    }

    /// Changes the credit of a place, and the charge with it.
    fn recredit(&mut self, place: &Place, credit: Option<Credit>) {
        let part = place.part.is_some();
        let old = match (&place.part, credit) {
            (None, Some(credit)) => self.credits.insert(place.clone(), credit),
            (None, None) => self.credits.remove(place),
            (Some((upload, number)), Some(credit)) => match self.writing.get_mut(upload) {
                Some(writing) => writing.credits.insert(*number, credit),
                None => return,
            },
            (Some((upload, number)), None) => {
                self.writing.get_mut(upload).and_then(|writing| writing.credits.remove(number))
            }
        };
        let excess = |credit: Option<Credit>| credit.map_or_else(Charge::default, |credit| credit.excess(part));
        self.recharge(excess(old), excess(credit));
    }

    /// Replaces a charge by another.
    fn recharge(&mut self, before: Charge, after: Charge) {
        // What is taken away was added before.
        self.used.bytes = self.used.bytes - before.bytes + after.bytes;
        self.used.slots = self.used.slots - before.slots + after.slots;
    }

    /// Changes what the writers of parts are charged for besides their places.
    fn recharge_aside(&mut self, place: &Place, before: Charge, after: Charge) {
        self.recharge(before, after);
        if let Some((upload, _)) = &place.part
            && let Some(writing) = self.writing.get_mut(upload)
        {
            writing.aside = writing.aside - before.bytes + after.bytes;
        }
    }

    fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used.bytes)
    }

    /// Errors: there is no room for `needed` more bytes.
    pub(super) fn room(&self, needed: u64) -> Result<()> {
        let free = self.free();
        if needed > free { Err(StoreError::InsufficientStorage { needed, free }) } else { Ok(()) }
    }

    /// Errors: there are no `needed` more slots.
    pub(super) fn slots(&self, needed: u64) -> Result<()> {
        if needed > 0 && self.used.slots.saturating_add(needed) > self.slots {
            return Err(StoreError::NoSlots(self.slots));
        }
        Ok(())
    }

    /// Starts a writer of `size` bytes, as far as that is known, at a place where there is something of `there` bytes, or
    /// nothing. `versioned`: it replaces nothing.
    pub(super) fn claim(&mut self, place: Place, size: u64, there: Option<u64>, versioned: bool) -> Result<Claim> {
        let credited = !versioned && self.credit(&place).is_none();
        let mut claim = Claim {
            place,
            bytes: size,
            slots: versioned.into(),
            credited,
            ended: None,
            released: AtomicBool::new(false),
        };
        if credited {
            self.room(size.saturating_sub(there.unwrap_or(0)))?;
            self.slots((claim.place.part.is_none() && there.is_none()).into())?;
        } else {
            self.room(size)?;
            self.slots(claim.slots)?;
        }
        if let Some((upload, _)) = &claim.place.part {
            let writing = self.writing.entry(upload.clone()).or_default();
            writing.writers += 1;
            claim.ended = Some(Arc::clone(&writing.ended));
        }
        if credited {
            self.recredit(&claim.place, Some(Credit { bytes: size, there }));
        } else {
            self.recharge_aside(&claim.place, Charge::default(), claim.aside());
        }
        Ok(claim)
    }

    /// Makes a claim larger or smaller: at least `least` and at most `want` bytes, as there is room.
    pub(super) fn resize(&mut self, claim: &mut Claim, least: u64, want: u64) -> Result<()> {
        claim.check()?;
        let free = self.free();
        let credit = self.credit(&claim.place).copied().filter(|_| claim.credited);
        // The most that this claim can be.
        let most = free.saturating_add(match credit {
            Some(credit) => credit.bytes.max(credit.there.unwrap_or(0)),
            None => claim.bytes,
        });
        if least > most {
            return Err(StoreError::InsufficientStorage { needed: least - most + free, free });
        }
        let before = claim.aside();
        claim.bytes = want.min(most);
        match credit {
            Some(credit) => self.recredit(&claim.place, Some(Credit { bytes: claim.bytes, ..credit })),
            None => self.recharge_aside(&claim.place, before, claim.aside()),
        }
        Ok(())
    }

    /// Ends a writer, the first time. What it has written, if it is to stay, is not charged yet.
    pub(super) fn release(&mut self, claim: &Claim) {
        if claim.released.swap(true, Ordering::Relaxed) || claim.check().is_err() {
            return;
        }
        if claim.credited {
            self.recredit(&claim.place, None);
        } else {
            self.recharge_aside(&claim.place, claim.aside(), Charge::default());
        }
        if let Some((upload, _)) = &claim.place.part
            && let Some(writing) = self.writing.get_mut(upload)
        {
            writing.writers -= 1;
            if writing.writers == 0 {
                self.writing.remove(upload);
            }
        }
    }

    /// Whether there is room for an object of `size` bytes. `there`: bytes of the version `null`. `ends`: what else ends with
    /// it, besides `claim`.
    pub(super) fn fits(
        &self,
        place: &Place,
        size: u64,
        there: Option<u64>,
        versioned: bool,
        claim: Option<&Claim>,
        ends: Charge,
    ) -> Result<()> {
        let credited = claim.is_some_and(|claim| claim.credited);
        let aside = claim.map_or_else(Charge::default, Claim::aside);
        let of = |there: Option<u64>, credit: Option<u64>| Charge {
            bytes: there.unwrap_or(0).max(credit.unwrap_or(0)),
            slots: (there.is_some() || credit.is_some()).into(),
        };
        let credit = self.credit(place).map(|credit| credit.bytes);
        let before = of(there, credit);
        let (there, version) = if versioned { (there, Some(size)) } else { (Some(size), None) };
        let after = of(there, credit.filter(|_| !credited));
        // A writer has its room; a copy does not, nor what was to replace something before versioning was turned on.
        let taken = after.bytes + version.unwrap_or(0);
        self.room(taken.saturating_sub(before.bytes + aside.bytes + ends.bytes))?;
        let taken = after.slots + u64::from(version.is_some());
        self.slots(taken.saturating_sub(before.slots + aside.slots + ends.slots))
    }

    /// What the writers of an upload's parts are charged for.
    pub(super) fn writing(&self, upload: &str) -> u64 {
        self.writing.get(upload).map_or(0, Writing::excess)
    }

    /// Ends the writers of an upload's parts. They have no claim any more.
    pub(super) fn end_writing(&mut self, upload: &str) {
        if let Some(writing) = self.writing.remove(upload) {
            writing.ended.store(true, Ordering::Relaxed);
            self.recharge(Charge { bytes: writing.excess(), slots: 0 }, Charge::default());
        }
    }

    /// Makes a change of what is stored.
    pub(super) fn apply(&mut self, step: &Step) {
        match step {
            Step::Replaced { place, before, after } => {
                self.replace(place, *before, *after);
                self.moving.insert(place.clone(), *after);
            }
            Step::Added(stored) => self.add(stored),
            Step::Removed(stored) => self.remove(stored),
        }
    }

    fn replace(&mut self, place: &Place, before: Option<u64>, after: Option<u64>) {
        let slots = |there: Option<u64>| (place.part.is_none() && there.is_some()).into();
        let charge = |there: Option<u64>| Charge { bytes: there.unwrap_or(0), slots: slots(there) };
        self.recharge(charge(before), charge(after));
        if let Some(credit) = self.credit(place).copied() {
            self.recredit(place, Some(Credit { there: after, ..credit }));
        }
    }

    fn add(&mut self, stored: &Stored) {
        self.recharge(Charge::default(), Charge { bytes: stored.bytes, slots: stored.slots });
        self.objects += stored.objects;
        self.uploads += stored.uploads;
    }

    fn remove(&mut self, stored: &Stored) {
        self.recharge(Charge { bytes: stored.bytes, slots: stored.slots }, Charge::default());
        self.objects -= stored.objects;
        self.uploads -= stored.uploads;
    }

    /// The transaction is committed: the tables say it all.
    pub(super) fn committed(&mut self) {
        self.moving.clear();
        self.generation += 1;
    }

    /// The transaction has come to nothing.
    pub(super) fn aborted(&mut self, steps: Vec<Step>) {
        for step in steps.into_iter().rev() {
            match step {
                Step::Replaced { place, before, after } => self.replace(&place, after, before),
                Step::Added(stored) => self.remove(&stored),
                Step::Removed(stored) => self.add(&stored),
            }
        }
        self.committed();
    }
}
