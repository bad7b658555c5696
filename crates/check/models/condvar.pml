/*
 * The condition variable of Latchwork, for Spin.
 *
 * What is modelled.  A condition variable is a list of waiter slots, guarded
 * by a bit lock.  Each thread owns one slot for all its waits and uses it
 * again at once, on the same or on another condition variable.
 *
 *   wait       status = WAITING; lock list; append slot; unlock list; unlock
 *              mutex; futex-sleep while status is WAITING or PENDING.  After
 *              a time-out or a cancel: lock list; if still WAITING, unlink
 *              and give up; else a signaller has the slot: sleep on until
 *              SIGNALLED, then report success (time-out) or pass the signal
 *              on by calling signal (cancel).  Lock mutex, return.
 *   signal     if head == 0 return; lock list; take the head off, if there
 *              is one; status = PENDING; unlock list; status = SIGNALLED;
 *              futex wake.
 *   broadcast  if head == 0 return; lock list; detach all, each PENDING;
 *              unlock list; for each: read next, then status = SIGNALLED,
 *              then futex wake.
 *   destroy    (only with DESTROY) wait until users == 0.  users counts the
 *              threads inside wait; each takes itself off after its last
 *              touch of the condition variable and before it locks the mutex.
 *
 * What is not.  Memory is sequentially consistent: Spin knows no weak memory,
 * so this says nothing of memory orderings.  The mutex is an abstract lock.
 * No thread dies.  The bit lock blocks; how it spins or parks is left out.
 * Time-outs, cancels and spurious futex returns may happen at any moment of a
 * sleep, but only TO, CA and SP times in a run: without such a bound a lost
 * wake-up would be repaired by the next spurious return and never be seen.
 *
 * The program around it.  tokens[c] is the predicate of condition variable c.
 * A waiter takes one token per round, and waits while there is none; if it
 * times out or is cancelled it leaves without looking at the tokens.  A
 * signaller adds one token under the mutex, unlocks it and signals once; a
 * broadcaster adds BT tokens and broadcasts once.  Signalling after unlocking
 * is the harder case: it allows every order that signalling under the mutex
 * does, but for those in which others wait for the mutex.
 *
 * Grain.  With FINE every load and store of a shared word is a step of its
 * own.  Without it steps are merged where at most one of them can be seen by
 * a thread that does not hold the lock in question (links, tail and PENDING
 * are read under the list lock only; tokens under the mutex only).  Mutants
 * always run with FINE.
 *
 * Properties.
 *   (a) the mutex is held by one thread: assert(mtx == ...) at each use.
 *   (b) no lost wake-up: when nothing can move any more (monitor), nobody
 *       sleeps on a slot that is PENDING or SIGNALLED, nobody waits on c
 *       while tokens[c] > 0, and nobody is stuck anywhere else; and as an LTL
 *       formula, without bound on spurious returns.
 *   (c) a signal reaches one of those who waited when it was sent, and is
 *       not consumed by a waiter that gave up nor by a later one (ghost
 *       state: elig, E, by; left out with NOGHOST).  "Waited" means: had
 *       unlocked the mutex in wait; "sent" means: when signal reads head.
 *   (d) the list is well-formed whenever its lock is released (wf).
 *   (e) in the end the list holds the sleepers, and is empty if there are
 *       none.
 *   (f) with DESTROY: nobody touches a destroyed condition variable.
 *
 * Compile-time numbers: NW waiters, ROUNDS each; NS signallers, K signals
 * each; NB broadcasters of BT tokens; NCV condition variables (1 or 2);
 * TO, CA, SP as above.  Mutants: see the script "run".
 */

#ifndef NW
#define NW 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef NS
#define NS 2
#endif
#ifndef K
#define K 1
#endif
#ifndef NB
#define NB 0
#endif
#ifndef BT
#define BT NW
#endif
#ifndef NCV
#define NCV 1
#endif
#ifndef TO
#define TO 0
#endif
#ifndef CA
#define CA 0
#endif
#ifndef SP
#define SP 0
#endif

#ifdef SEQWRAP
/*
 * The classic that the list replaces: a sequence number in a futex word.
 * wait reads it, unlocks the mutex and sleeps if it is unchanged; signal adds
 * one and wakes one sleeper.  SEQWRAP is the number of values the word has.
 * A waiter between its read and its sleep does not see SEQWRAP signals.
 */
byte mtx, tokens, seq, ndone;
bool asleep[NW + 1];

proctype Waiter(byte me)
{
	byte s = 0;

	atomic { mtx == 0 -> mtx = me };
	do
	:: tokens > 0 -> tokens--; break
	:: tokens == 0 ->
		s = seq;
		d_step { assert(mtx == me); mtx = 0 };
		d_step { if :: seq == s -> asleep[me] = true :: else fi };
end_asleep:
		asleep[me] == false;
		atomic { mtx == 0 -> mtx = me }
	od;
	atomic { assert(mtx == me); mtx = 0; ndone++ }
}

proctype Signaller(byte me)
{
	byte i = 0;

	do
	:: i < K ->
		atomic { mtx == 0 -> mtx = me };
		tokens++;
		d_step { assert(mtx == me); mtx = 0 };
		d_step { seq = (seq + 1) % SEQWRAP };
		if	/* wake one, any one */
		:: atomic { asleep[1] -> asleep[1] = false }
		:: atomic { asleep[2] -> asleep[2] = false }
#if NW > 2
		:: atomic { asleep[3] -> asleep[3] = false }
#endif
		:: else
		fi;
		i++
	:: else -> break
	od;
	ndone++
}

init {
	byte i;

	atomic {
		i = 1;
		do
		:: i <= NW -> run Waiter(i); i++
		:: i > NW && i <= NW + NS -> run Signaller(i); i++
		:: else -> break
		od
	};
	timeout;
	assert(tokens == 0 || ndone == NW + NS)
}

#else /* the condition variable itself */

#define IDLE		0
#define WAITING		1
#define PENDING		2
#define SIGNALLED	3

#define NSIG	(NS * K + NB)	/* signal numbers are 1..NSIG */
#define BIT(w)	(1 << (w))

#ifdef FINE
#define MERGED			/* each step on its own */
#else
#define MERGED	atomic
#endif

#ifdef NOGHOST
#define G(x)	skip
#else
#define G(x)	x
#endif

/* the condition variables */
byte head[NCV], tail[NCV];	/* slot number, 0 for none */
bool lk[NCV];
/* the slots, 1..NW */
byte status[NW + 1], nxt[NW + 1], prv[NW + 1];
bool asleep[NW + 1];		/* the kernel's: the thread sleeps on status */
/* the program */
byte mtx;			/* 0 or the owner */
byte tokens[NCV];
byte ndone;
byte to_left = TO, ca_left = CA, sp_left = SP;
#ifdef LTL
byte inside;			/* threads between unlock and lock in wait */
#define INSIDE(n)	inside = inside + (n)
#else
#define INSIDE(n)	skip
#endif
#ifdef DESTROY
byte users[NCV];
bool dead[NCV];
#define TOUCH(c)	assert(!dead[c])
#else
#define TOUCH(c)	skip
#endif
/* ghosts */
byte elig[NCV];			/* slots that wait: mutex released, not taken,
				   not given up */
byte E[NSIG + 1];		/* those of elig that signal s was sent to, as
				   far as they still wait */
byte by[NW + 1];		/* the signal that took the slot */
/* scratch, never part of a state */
hidden byte gi, gp, gc;

/* ghost: slot w waits no longer */
inline departs(w)
{
	elig[0] = elig[0] & ~BIT(w);
#if NCV > 1
	elig[1] = elig[1] & ~BIT(w);
#endif
	gi = 0;
	do
	:: gi <= NSIG -> E[gi] = E[gi] & ~BIT(w); gi++
	:: else -> break
	od;
	gi = 0
}

/* ghost: signal s takes slot w; c: somebody it was sent to, if any is left */
inline taken(w, s)
{
	assert(by[w] == 0);
	assert(s == 0 || E[s] == 0 || (E[s] & BIT(w)) != 0);
	by[w] = s;
	departs(w)
}

/* ghost: broadcast s takes all of c's list */
inline all_taken(c, s)
{
	gc = head[c];
	do
	:: gc != 0 -> taken(gc, s); gc = nxt[gc]
	:: else -> break
	od;
	gc = 0;
	assert(E[s] == 0)
}

/* (d), called with the list lock held */
inline wf(c)
{
	gi = 0; gp = 0; gc = head[c];
	do
	:: gc != 0 ->
		assert(gi < NW);
		assert(prv[gc] == gp);
		assert(status[gc] == WAITING);
		gp = gc; gc = nxt[gc]; gi++
	:: else -> break
	od;
	assert(tail[c] == gp);
	gi = 0; gp = 0; gc = 0
}

inline list_lock(c)
{
	atomic { lk[c] == false -> lk[c] = true; TOUCH(c) }
}

inline list_unlock(c)
{
	d_step { TOUCH(c); assert(lk[c]); wf(c); lk[c] = false }
}

/* take h's slot number n as new head of c; the lock is held */
inline drop_head(c, s)
{
	d_step { n = nxt[h] };
	d_step { head[c] = n; G(taken(h, s)) };
	d_step {
		if
		:: n != 0 -> prv[n] = 0
		:: else -> tail[c] = 0
		fi;
		n = 0
	}
}

/* sid: number of the signal; fresh: not one passed on.  Uses h, n. */
inline signal(c, sid, fresh)
{
	d_step {
		TOUCH(c);
		h = head[c];
		G(if :: fresh -> E[sid] = elig[c] :: else fi);
		G(assert(h != 0 || E[sid] == 0))
	};
	if
	:: h == 0
	:: else ->
#ifdef MARK_BEFORE_LOCK
		d_step { status[h] = SIGNALLED };
#endif
		MERGED {
			list_lock(c);
#ifndef STALE_HEAD
			d_step { h = head[c]; G(assert(h != 0 || E[sid] == 0)) };
#endif
			if
			:: h == 0 -> list_unlock(c)
			:: else ->
#if defined(MARK_BEFORE_UNLINK)
				d_step { status[h] = SIGNALLED };
				drop_head(c, sid);
#elif defined(MARK_BEFORE_LOCK) || defined(NO_PENDING)
				drop_head(c, sid);
#else
				drop_head(c, sid);
				d_step { status[h] = PENDING };
#endif
				list_unlock(c)
			fi
		};
		if
		:: h == 0
		:: else ->
#ifdef WAKE_FIRST
			asleep[h] = false;
#endif
#if !defined(MARK_BEFORE_LOCK) && !defined(MARK_BEFORE_UNLINK)
			status[h] = SIGNALLED;
#endif
#if !defined(WAKE_FIRST) && !defined(NO_WAKE)
			asleep[h] = false;
#endif
			h = 0
		fi
	fi
}

/* Uses h, n. */
inline broadcast(c, sid)
{
	d_step {
		TOUCH(c);
		h = head[c];
		G(E[sid] = elig[c]);
		G(assert(h != 0 || E[sid] == 0))
	};
	if
	:: h == 0
	:: else ->
		MERGED {
			list_lock(c);
			d_step { h = head[c] };
			d_step { G(all_taken(c, sid)); head[c] = 0 };
			d_step { tail[c] = 0 };
			n = h;
			do
			:: n != 0 ->
#ifndef BROADCAST_NO_PENDING
				d_step { status[n] = PENDING };
#endif
				d_step { n = nxt[n] }
			:: else -> break
			od;
			list_unlock(c)
		};
		do
		:: h != 0 ->
#ifdef NEXT_AFTER_SIGNALLED
			status[h] = SIGNALLED;
			asleep[h] = false;
			n = nxt[h];
#else
			MERGED {
				n = nxt[h];
				status[h] = SIGNALLED
			};
#ifndef BROADCAST_NO_WAKE
			asleep[h] = false;
#endif
#endif
			d_step { h = n; n = 0 }
		:: else -> break
		od
	fi
}

/* The waiter's slot goes to the tail of c.  Uses n. */
inline append(c)
{
	MERGED {
		status[me] = WAITING;
		list_lock(c);
#ifdef PUSH_AT_HEAD
		d_step { n = head[c]; nxt[me] = n; prv[me] = 0; head[c] = me };
		d_step { if :: n != 0 -> prv[n] = me :: else -> tail[c] = me fi; n = 0 };
#else
		d_step { n = tail[c] };
		d_step { prv[me] = n };
		d_step { nxt[me] = 0 };
		d_step { if :: n != 0 -> nxt[n] = me :: else -> head[c] = me fi };
		d_step { tail[c] = me; n = 0 };
#endif
#ifdef DESTROY
		d_step { users[c]++ };
#endif
		list_unlock(c)
	}
}

/* The waiter's slot leaves c; the lock is held.  Uses h (before), n (after). */
inline unlink(c)
{
	d_step { h = prv[me]; n = nxt[me] };
	d_step { if :: h != 0 -> nxt[h] = n :: else -> head[c] = n fi };
#ifdef UNLINK_KEEPS_TAIL
	d_step { if :: n != 0 -> prv[n] = h :: else fi; h = 0; n = 0 }
#else
	d_step { if :: n != 0 -> prv[n] = h :: else -> tail[c] = h fi; h = 0; n = 0 }
#endif
}

#define SUCCESS		0
#define TIMED_OUT	1
#define CANCELLED	2

/* Called with the mutex held; lock_again follows.  Leaves why = result. */
inline wait(c)
{
#ifdef ENQUEUE_LATE
	d_step { assert(mtx == me); mtx = 0; INSIDE(1); G(elig[c] = elig[c] | BIT(me)) };
	append(c);
#else
	append(c);
	d_step {
		assert(mtx == me);
		mtx = 0;
		INSIDE(1);
		G(if :: by[me] == 0 -> elig[c] = elig[c] | BIT(me) :: else fi)
	};
#endif
	why = SUCCESS;
	drain = false;
	do
	::
		MERGED {
			d_step { s = status[me] };
			if
#ifdef PENDING_IS_ENOUGH
			:: s != WAITING -> s = 0; break
#else
			:: s == SIGNALLED -> s = 0; break
#endif
			:: else
			fi;
			/* the kernel: compare and sleep */
#ifdef NO_COMPARE
			d_step { asleep[me] = true; s = 0 }
#else
			d_step {
				if
				:: status[me] == s -> asleep[me] = true
				:: else
				fi;
				s = 0
			}
#endif
		};
end_asleep:
		if
		:: asleep[me] == false
#ifdef SPURIOUS_UNBOUNDED
		:: d_step { asleep[me] -> asleep[me] = false }
#else
		:: d_step { sp_left > 0 && asleep[me] -> sp_left--; asleep[me] = false }
#endif
		:: d_step {
			!drain && to_left > 0 ->
				to_left--; asleep[me] = false; why = TIMED_OUT
		}
		:: d_step {
			!drain && ca_left > 0 ->
				ca_left--; asleep[me] = false; why = CANCELLED
		}
		fi;
#ifdef ANY_RETURN_IS_A_WAKE
		if :: why == SUCCESS -> break :: else fi;
#endif
		if
		:: why == SUCCESS || drain
		:: else ->
			MERGED {
#ifndef UNLINK_UNLOCKED
				list_lock(c);
#endif
				d_step {
					s = status[me];
					G(if :: s == WAITING -> departs(me) :: else fi)
				};
				if
				:: s == WAITING ->
					s = 0;
					unlink(c);
#ifndef UNLINK_UNLOCKED
					list_unlock(c);
#endif
					break
				:: else ->
					s = 0;
#ifndef UNLINK_UNLOCKED
					list_unlock(c);
#endif
					drain = true
				fi
			};
#ifdef NO_DRAIN
			/* taken: does not wait for SIGNALLED */
			break
#endif
		fi
	od;
	if
	:: drain ->
		/* the signal is ours: keep it, or pass it on */
		if
#ifdef TIMEOUT_LOSES_SIGNAL
		:: why == TIMED_OUT
#else
		:: why == TIMED_OUT -> why = SUCCESS
#endif
		:: why == CANCELLED ->
#ifndef CANCEL_KEEPS_SIGNAL
			d_step { s = by[me]; by[me] = 0 };
			signal(c, s, false);
			s = 0
#endif
		fi;
		drain = false
	:: else
	fi;
	/* (c): who did not succeed has consumed nothing */
	d_step {
		G(assert(why == SUCCESS || by[me] == 0));
		G(if :: by[me] != 0 -> E[by[me]] = 0 :: else fi);
		by[me] = 0;
#ifndef FINE
		/* nobody reads these any more: fewer states */
		status[me] = IDLE; nxt[me] = 0; prv[me] = 0;
#endif
#if defined(DESTROY) && !defined(LEAVE_LATE)
		users[c]--;
#endif
		INSIDE(-1)
	};
	skip
}

/* the end of wait */
inline lock_again(c)
{
	atomic { mtx == 0 -> mtx = me };
#if defined(DESTROY) && defined(LEAVE_LATE)
	d_step { users[c]-- };
#endif
	skip
}

#define CV	(r % NCV)

proctype Waiter(byte me)
{
	byte r = 0, why = 0, h = 0, n = 0, s = 0;
	bool drain = false;

	do
	:: r < ROUNDS ->
		MERGED {
			atomic { mtx == 0 -> mtx = me };
			if
			:: tokens[CV] > 0 -> goto take
			:: else
			fi
		};
again:
		wait(CV);
		MERGED {
			lock_again(CV);
			if
			:: why != SUCCESS -> why = 0; goto leave
			:: why == SUCCESS && tokens[CV] == 0 -> goto again
			:: why == SUCCESS && tokens[CV] > 0
			fi
		};
take:
		MERGED {
			atomic { assert(mtx == me); tokens[CV]-- };
leave:
			atomic { assert(mtx == me); mtx = 0; r++ }
		}
	:: else -> break
	od;
	ndone++
}

#define SCV	((me + i) % NCV)

proctype Signaller(byte me)	/* 0..NS-1 */
{
	byte i = 0, h = 0, n = 0;

	do
	:: i < K ->
#ifdef PREDICATE_UNLOCKED
		tokens[SCV]++;
#else
		MERGED {
			atomic { mtx == 0 -> mtx = NW + 1 + me };
			tokens[SCV]++;
			d_step { assert(mtx == NW + 1 + me); mtx = 0 }
		};
#endif
		signal(SCV, 1 + me * K + i, true);
		i++
	:: else -> break
	od;
	ndone++
}

#define BCV	(me % NCV)

proctype Broadcaster(byte me)	/* 0..NB-1 */
{
	byte h = 0, n = 0;
	bool held = false;

	atomic { mtx == 0 -> mtx = NW + NS + 1 + me };
	d_step { tokens[BCV] = tokens[BCV] + BT };
	if
	:: d_step { assert(mtx == NW + NS + 1 + me); mtx = 0 }
#ifdef DESTROY
	:: held = true
#endif
	fi;
	broadcast(BCV, NS * K + 1 + me);
#ifdef DESTROY
	atomic {
#ifndef DESTROY_AT_ONCE
		users[BCV] == 0 ->
#endif
		assert(head[BCV] == 0);
		dead[BCV] = true
	};
#endif
	if
	:: held -> d_step { assert(mtx == NW + NS + 1 + me); mtx = 0 }
	:: else
	fi;
	ndone++
}

inline at_rest(c)
{
	assert(lk[c] == false);
	assert(head[c] == 0 || tokens[c] == 0);		/* (b) */
	wf(c);						/* (d) */
	gc = head[c];
	do
	:: gc != 0 -> assert(asleep[gc]); gp++; gc = nxt[gc]
	:: else -> break
	od;
	gc = 0
}

init {
	byte i = 0;

	atomic {
		do
		:: i < NW -> run Waiter(i + 1); i++
		:: i >= NW && i < NW + NS -> run Signaller(i - NW); i++
		:: i >= NW + NS && i < NW + NS + NB ->
			run Broadcaster(i - NW - NS); i++
		:: else -> i = 0; break
		od
	};
	/* the monitor: nothing else can move */
	timeout;
	d_step {
		gi = 1; gp = 0;
		do
		:: gi <= NW ->
			if
			:: asleep[gi] -> assert(status[gi] == WAITING); gp++
			:: else
			fi;
			gi++
		:: else -> break
		od;
		i = gp; gi = 0; gp = 0
	};
	assert(mtx == 0);
	assert(ndone + i == NW + NS + NB);		/* (b): no one stuck */
	d_step { at_rest(0); i = i - gp; gp = 0 };
#if NCV > 1
	d_step { at_rest(1); i = i - gp; gp = 0 };
#endif
	assert(i == 0)					/* (e) */
}

#ifdef LTL
/* (b) again: it does not stay so that there is a token and one who waits */
ltl no_lost_wakeup { <>[] !(tokens[0] > 0 && inside > 0) }
#endif

#endif
