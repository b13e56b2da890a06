//! An owner's browser: a link that signs it in once, and the sign-in that came of it.
//!
//! Both are random tokens of which only the hash is here. A link is bound to its owner, counts for
//! `sign_in_link_seconds` and works once. A sign-in ends by itself, idle or old, and at once when its
//! owner says so: whoever reads the row after that was answered finds it ended. The word *session*
//! is taken: it is the time that a tab is open.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{OwnerId, SignInId};
use crate::party::{Owner, Principal};
use crate::problem::{Code, Refusal};
use crate::settings::Settings;
use crate::time::{Timestamp, after, seconds_between};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// How long the browser that used a link may use it again, in seconds: a second tap while the first
/// answer was on its way must not lock its owner out.
const SECOND_TAP_SECONDS: i64 = 60;

/// A link that signs its owner in, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginLink {
    /// SHA-256 of its token, in hex. The token holds 128 random bits, so a plain hash is enough.
    pub hash: String,
    /// Whom it signs in.
    pub owner: OwnerId,
    /// Who asked for it: the owner, or the operator for the owner.
    pub by: Principal,
    /// When it stops counting.
    pub expires_at: Timestamp,
    /// When, and by which browser, it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<LinkUse>,
    /// Whether it was taken back, with everything that was signed in.
    #[serde(default)]
    pub revoked: bool,
}

/// The use of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// When.
    pub at: Timestamp,
    /// SHA-256 of what the browser was given with the page of the link, in hex.
    pub browser: String,
    /// The hash of the sign-in that came of it.
    pub sign_in: String,
}

impl LoginLink {
    /// Whether it would still sign somebody in who has not used it.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.used.is_none() && !self.revoked && now < self.expires_at
    }
}

impl Record for LoginLink {
    const KIND: &'static str = "login_link";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.hash.clone()
    }
}

/// A browser that is signed in, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignIn {
    /// SHA-256 of its cookie, in hex.
    pub hash: String,
    /// What it is called.
    pub id: SignInId,
    /// Who is signed in.
    pub owner: OwnerId,
    /// Who asked for the link that it came from.
    pub by: Principal,
    /// When it began.
    pub created_at: Timestamp,
    /// When it was last seen, up to a twelfth of the idle time late: not every look is written down.
    pub seen_at: Timestamp,
    /// When it ended before its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl SignIn {
    /// When it ends by itself, unless it is seen again before.
    pub fn expires_at(&self, settings: &Settings) -> Timestamp {
        let idle = after(self.seen_at, settings.sign_in_idle_seconds);
        idle.min(after(self.created_at, settings.sign_in_most_seconds))
    }

    /// Whether it counts now.
    pub fn is_live(&self, settings: &Settings, now: Timestamp) -> bool {
        self.ended_at.is_none() && now < self.expires_at(settings)
    }

    /// Whether it is time to write down that it was seen.
    pub fn is_due(&self, settings: &Settings, now: Timestamp) -> bool {
        let every = settings.sign_in_idle_seconds.checked_div(12).unwrap_or(0);
        seconds_between(self.seen_at, now) >= every
    }
}

impl Record for SignIn {
    const KIND: &'static str = "sign_in";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.hash.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("sign_ins", self.owner, self.id)]
    }
}

/// Everything of an owner's that may be signed in: what *sign out everywhere* needs without a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignIns {
    /// Whose.
    pub owner: OwnerId,
    /// The latest links, with the time each was asked for, oldest first.
    pub links: Vec<(Timestamp, String)>,
    /// The sign-ins that did not end before their time, oldest first.
    pub live: Vec<String>,
}

impl SignIns {
    fn of(view: &View, owner: OwnerId) -> Result<Self, Stop> {
        let known = view.row::<Self>(owner)?.cloned();
        Ok(known.unwrap_or_else(|| Self { owner, links: Vec::new(), live: Vec::new() }))
    }
}

impl Record for SignIns {
    const KIND: &'static str = "sign_ins";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.owner.to_string()
    }
}

/// Ends a sign-in, if it has not ended.
fn end(effects: &mut Effects<()>, view: &View, hash: &str, now: Timestamp) -> Result<(), Stop> {
    let live = view.row::<SignIn>(hash)?.filter(|known| known.ended_at.is_none());
    match live {
        Some(known) => effects.put(SignIn { ended_at: Some(now), ..known.clone() }),
        None => Ok(()),
    }
}

/// Asks for a link. Only its hash gets here.
#[derive(Clone, Debug)]
pub struct AskLogin {
    /// Whom it signs in.
    pub owner: OwnerId,
    /// Who asks: the owner, or the operator.
    pub by: Principal,
    /// SHA-256 of the token, in hex.
    pub hash: String,
    /// Numbers the operator set.
    pub settings: Arc<Settings>,
}

impl Unit for AskLogin {
    type Answer = LoginLink;

    fn name(&self) -> &'static str {
        "login.ask"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.row::<SignIns>(self.owner);
        touches.row::<LoginLink>(&self.hash);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<LoginLink>, Stop> {
        if view.row::<Owner>(self.owner)?.is_none() {
            return Err(Refusal::new(Code::NotFound, "no such owner").into());
        }
        let mut known = SignIns::of(view, self.owner)?;
        let (most, life) = (self.settings.sign_in_links, self.settings.sign_in_link_seconds);
        known.links.retain(|(at, _)| seconds_between(*at, now) < life);
        let full = known.links.len() >= usize::try_from(most).unwrap_or(usize::MAX);
        if let (Some((oldest, _)), true) = (known.links.first(), full) {
            let wait = life.saturating_sub(seconds_between(*oldest, now)).max(1);
            let why =
                format!("at most {most} sign-in links are made for an owner in {life} seconds");
            return Err(Refusal::new(Code::RateLimited, why).retry_after(wait).into());
        }
        known.links.push((now, self.hash.clone()));
        let link = LoginLink {
            hash: self.hash.clone(),
            owner: self.owner,
            by: self.by,
            expires_at: after(now, life),
            used: None,
            revoked: false,
        };
        let mut effects = Effects::answer(link.clone());
        let by = self.by.to_string();
        effects.event("owner.login_asked", &[&self.owner], json!({ "by": by }));
        effects.put(known)?;
        effects.put(link)?;
        Ok(effects)
    }
}

/// Uses a link. Only hashes get here.
#[derive(Clone, Debug)]
pub struct UseLink {
    /// The hash of the link's token.
    pub link: String,
    /// Whom it signs in, from a plain read; never changes.
    pub owner: OwnerId,
    /// The hash of what the browser was given with the page of the link.
    pub browser: String,
    /// The hash of the new cookie.
    pub hash: String,
    /// The id of the new sign-in.
    pub id: SignInId,
    /// Numbers the operator set.
    pub settings: Arc<Settings>,
}

impl Unit for UseLink {
    type Answer = SignIn;

    fn name(&self) -> &'static str {
        "login.use"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SignIns>(self.owner);
        touches.row::<LoginLink>(&self.link);
        touches.row::<SignIn>(&self.hash);
        for hash in view.peek::<SignIns>(self.owner).iter().flat_map(|known| &known.live) {
            touches.row::<SignIn>(hash);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<SignIn>, Stop> {
        let link = view.row::<LoginLink>(&self.link)?.filter(|link| link.owner == self.owner);
        let Some(link) = link.filter(|link| !link.revoked && now < link.expires_at) else {
            return Err(link_gone().into());
        };
        let mut effects = Effects::answer(());
        let mut known = SignIns::of(view, self.owner)?;
        if let Some(used) = &link.used {
            let same = used.browser == self.browser && known.live.contains(&used.sign_in);
            if !same || seconds_between(used.at, now) >= SECOND_TAP_SECONDS {
                return Err(link_gone().into());
            }
            // The first answer may never have arrived; of two sign-ins one is enough.
            known.live.retain(|hash| *hash != used.sign_in);
            end(&mut effects, view, &used.sign_in, now)?;
        }
        let most = self.settings.sign_in_browsers.saturating_sub(1);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        for oldest in known.live.drain(..known.live.len().saturating_sub(most)) {
            end(&mut effects, view, &oldest, now)?;
        }
        known.live.push(self.hash.clone());
        let sign_in = SignIn {
            hash: self.hash.clone(),
            id: self.id,
            owner: self.owner,
            by: link.by,
            created_at: now,
            seen_at: now,
            ended_at: None,
        };
        let (browser, hash) = (self.browser.clone(), self.hash.clone());
        let used = Some(LinkUse { at: now, browser, sign_in: hash });
        effects.put(LoginLink { used, ..link.clone() })?;
        effects.event("owner.signed_in", &[&self.owner], json!({ "sign_in": self.id }));
        effects.put(known)?;
        effects.put(sign_in.clone())?;
        Ok(effects.map(|()| sign_in))
    }
}

/// Why a link signs nobody in: one sentence for all of it, so that a guess learns nothing.
pub fn link_gone() -> Refusal {
    let why = "the sign-in link was used, has expired, or never was one";
    Refusal::new(Code::Unauthenticated, why).next("ask for another: earnest owner login")
}

/// Writes down that a browser was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The hash of its cookie.
    pub hash: String,
    /// What decides whether it still counts.
    pub settings: std::sync::Arc<Settings>,
}

impl Unit for Seen {
    type Answer = ();

    fn name(&self) -> &'static str {
        "sign_in.seen"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SignIn>(&self.hash);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let known = view.row::<SignIn>(&self.hash)?;
        // One that ended in between stays ended.
        if let Some(known) = known.filter(|known| known.is_live(&self.settings, now)) {
            effects.put(SignIn { seen_at: now, ..known.clone() })?;
        }
        Ok(effects)
    }
}

/// Ends one sign-in of an owner's, or all of them with every link that is out.
#[derive(Clone, Debug)]
pub struct SignOut {
    /// Whose.
    pub owner: OwnerId,
    /// The hash of one; all unless said.
    pub one: Option<String>,
}

impl Unit for SignOut {
    /// How many ended.
    type Answer = usize;

    fn name(&self) -> &'static str {
        "sign_in.end"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SignIns>(self.owner);
        let known = view.peek::<SignIns>(self.owner);
        for hash in known.iter().flat_map(|known| &known.live) {
            touches.row::<SignIn>(hash);
        }
        for (_, hash) in known.iter().flat_map(|known| &known.links) {
            touches.row::<LoginLink>(hash);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<usize>, Stop> {
        let mut effects = Effects::answer(());
        let mut known = SignIns::of(view, self.owner)?;
        let is_meant = |hash: &String| self.one.as_ref().is_none_or(|one| one == hash);
        let meant: Vec<String> = known.live.iter().filter(|hash| is_meant(hash)).cloned().collect();
        for hash in &meant {
            end(&mut effects, view, hash, now)?;
        }
        if self.one.is_none() {
            for (_, hash) in &known.links {
                if let Some(link) = view.row::<LoginLink>(hash)? {
                    effects.put(LoginLink { revoked: true, ..link.clone() })?;
                }
            }
        }
        known.live.retain(|hash| !meant.contains(hash));
        let ended = meant.len();
        effects.event("owner.signed_out", &[&self.owner], json!({ "ended": ended }));
        effects.put(known)?;
        Ok(effects.map(|()| ended))
    }
}
