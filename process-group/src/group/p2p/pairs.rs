//! Communicators of pairs. The two ends of a pair make one together, at their first message.

use super::{
    CONNECT_TO, Explanation, Plan,
    messages::{Peer, Route},
};
use crate::{
    group::{KindResult, ProcessGroup, meeting::follow_up},
    profile,
    store::Deadline,
};

impl ProcessGroup {
    /// Returns the route for messages with member `peer`: the group's communicator, or a communicator of the pair. If
    /// the pair has no route yet, both ends determine the route together: with [`Plan::Choose`] they choose one of the
    /// two communicators, and otherwise it is the communicator of the pair. They make a communicator of the pair here.
    pub(super) fn route(&self, peer: usize, deadline: Deadline) -> KindResult<&Route> {
        let of_peer: &Peer = &self.messages.peers[peer];
        if let Some(route) = of_peer.route.get() {
            return Ok(route);
        }
        let _range = profile::range(CONNECT_TO, &self.name, 0);
        let _turn = of_peer.turn.take(deadline).ok_or_else(|| self.busy(CONNECT_TO, deadline))?;
        if let Some(route) = of_peer.route.get() {
            return Ok(route);
        }
        self.refuse_suspended(CONNECT_TO)?;
        let (low, high) = (self.rank.min(peer), self.rank.max(peer));
        let ranks = [low, high].map(|end| self.ranks[end]);
        let both = self.meeting_of("the communicator of a pair", &format!("pair/{low}-{high}"), &ranks);
        self.counter.health.check()?;
        // The group may become connected earlier on one end than on the other. Each end therefore tells the other
        // whether its group is connected, and both ends derive the same choice from the two values. The choice is final
        // for the pair, so the two ends of a message always use the same communicator.
        let (are_connected, deadline) = match self.messages.plan {
            Plan::Choose => {
                let choice = both.part("the communicator of a pair", "choice");
                let views = choice.gather(self.is_connected(), deadline)?;
                (views.iter().all(|(_, is_connected)| *is_connected), follow_up(deadline))
            }
            _ => (false, deadline),
        };
        let route = if are_connected {
            self.explain_once(Explanation::Serialised);
            Route::Group
        } else {
            let ends = [low, high].map(|end| self.members[end].clone());
            let config = self.messages_config(&ends, &format!("pair {}-{}", ranks[0], ranks[1]));
            self.explain_once(Explanation::CommunicatorsOfPairs);
            let made = self.prepare(&both, usize::from(self.rank == high), &config, deadline)?;
            let registered =
                self.agree_on_registration(&both, &[&made], deadline).inspect_err(|_| self.without(&made))?;
            self.buffer_cache.agreed(&registered);
            Route::Pair(Box::new(made), Box::new(registered))
        };
        Ok(of_peer.route.get_or_init(|| route))
    }
}
