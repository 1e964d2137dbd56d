//! The last part of a commit: every member opens (maps) the [new segments](CommitRecord::segments) of the others, and
//! also their signal pads if it has not opened them in an earlier commit. A signal pad is memory by which the other
//! members signal to a rank. If one member cannot open all of this memory, no member keeps the memory of this commit
//! open. The commit succeeds nevertheless, and its result contains the reason ([`Unmapped`]).

use bootstrap::agreement::Report;

use super::{
    peer_memory::{MemberMemory, PeerMappings, PeerOffer, Unmapped},
    plan::{Agreed, CommitDecision, CommitOutcome, CommitPlan},
    record::CommitRecord,
};

/// Returns [`PeerMappings::Offered`] if every member can open the memory of every other member: the first `segments`
/// new segments, and the signal pad if one is offered. Otherwise, or if `segments` is 0, returns
/// [`PeerMappings::Unmapped`] with the reason. `records` are the members' messages at the start of the commit, and must
/// be sorted by rank.
pub(crate) fn decide(records: &[(u32, &CommitRecord)], segments: usize) -> PeerMappings {
    match offered(records, segments) {
        Ok(members) => PeerMappings::Offered { members },
        Err(reason) => PeerMappings::Unmapped { reason },
    }
}

fn offered(records: &[(u32, &CommitRecord)], segments: usize) -> Result<Vec<MemberMemory>, Unmapped> {
    if segments == 0 {
        return Err(Unmapped::NothingNew {});
    }
    let memory = |(rank, record): &(u32, &CommitRecord)| {
        let not_offered = |cause: &str| Unmapped::NotOffered { rank: *rank, cause: cause.to_owned() };
        let mut memory = match &record.peers {
            PeerOffer::Offered { memory } => memory.clone(),
            PeerOffer::Missing { cause } => return Err(not_offered(cause)),
        };
        memory.segments.truncate(segments);
        if memory.segments.len() < segments {
            return Err(not_offered("it does not share all of the segments"));
        }
        let mut shared = memory.segments.iter().zip(&record.segments);
        if let Some((export, segment)) = shared.find(|(export, segment)| export.bytes != segment.bytes) {
            let (shares, ordinal) = (export.bytes, segment.ordinal);
            let cause = format!("it shares {shares} bytes of segment {ordinal} of {} bytes", segment.bytes);
            return Err(not_offered(&cause));
        }
        Ok(MemberMemory { rank: *rank, memory })
    };
    let members = records.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
    let has_pad = |member: &MemberMemory| member.memory.pad.is_some();
    if let Some(other) = members.iter().find(|member| has_pad(member) != has_pad(&members[0])) {
        let cause = "only some members share a signal pad".to_owned();
        return Err(Unmapped::NotOffered { rank: other.rank, cause });
    }
    let pairs = members.iter().flat_map(|owner| members.iter().map(move |opener| (owner, opener)));
    for (owner, opener) in pairs.filter(|(owner, opener)| owner.rank != opener.rank) {
        let (site, other) = (&owner.memory.site, &opener.memory.site);
        if !other.can_access(site) {
            return Err(Unmapped::NoPeerAccess { rank: opener.rank, peer: owner.rank });
        }
        let mut handles = owner.memory.exports().into_iter().map(|export| &export.handle);
        if let Some(handle) = handles.find(|handle| !handle.can_be_opened(site, other)) {
            let handle = handle.name();
            return Err(Unmapped::NoHandle { rank: owner.rank, handle, peer: opener.rank });
        }
    }
    Ok(members)
}

/// Decides from the members' reports on the opening of memory. Returns the result of the commit, with the new state of
/// the [mappings](PeerMappings). The segments are committed even if a member could not open the memory of another.
pub(crate) fn judge(agreed: &Agreed, reports: &[(u32, Report<CommitOutcome>)]) -> CommitDecision {
    let outcome = |report: &Report<CommitOutcome>| match report {
        Report::Outcome(CommitOutcome::Opened(outcome)) => Report::Outcome(outcome.clone()),
        Report::Outcome(_) | Report::Pending => Report::Pending,
        Report::Late => Report::Late,
    };
    let reports: Vec<_> = reports.iter().map(|(rank, report)| (*rank, outcome(report))).collect();
    let peers = match memory_sharing::judge(&reports) {
        None => PeerMappings::Opened {},
        Some(failure) => {
            let (rank, cause) = failure.cause();
            PeerMappings::Unmapped { reason: Unmapped::Failed { rank, cause } }
        }
    };
    CommitDecision::Agreed { agreed: Agreed { peers, ..agreed.clone() } }
}

impl Agreed {
    /// Returns the decision that follows the registration of windows, or that replaces it if there are none to
    /// register. If the members have offered each other memory that all can open, the decision is to open it. Otherwise
    /// the decision is the final result of the commit, `self`.
    pub(crate) fn open(self) -> CommitDecision {
        match self.peers {
            PeerMappings::Offered { .. } => CommitDecision::Act { plan: CommitPlan::Open(self) },
            PeerMappings::Opened {} | PeerMappings::Unmapped { .. } => {
                CommitDecision::Agreed { agreed: self }
            }
        }
    }
}
