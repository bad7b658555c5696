/*
 * The condition variable of Latchwork, for Spin.
 *
 * Modelled.  A condition variable is a list of waiter slots, guarded by a bit
 * lock.  Each thread owns one slot for all its waits and reuses it at once, on
 * the same or on another condition variable.
 *
 *   wait       enqueue: lock list, status = WAITING, append slot, unlock list;
 *              unlock mutex.  sleep_word: WAITING becomes PARKED, or the slot
 *              was taken: await GRANTED; futex-sleep while it is PARKED, and
 *              check again.  finish, when granted or after a time-out or a
 *              cancel: exchange WAITING or PARKED for LEAVING; if that
 *              succeeds, give up: lock list, unlink, unlock.  Else a waker has
 *              the slot: await GRANTED, then report success (time-out) or pass
 *              the signal on by calling signal (cancel).  Lock mutex, return.
 *   signal     if word == 0 return; lock list; from the first slot on,
 *              exchange WAITING for TAKEN or PARKED for TAKEN_PARKED, and skip
 *              LEAVING slots; unlink the taken slot; unlock list; exchange its
 *              status for GRANTED; futex wake if that was TAKEN_PARKED.
 *   broadcast  if word == 0 return; lock list; take and unlink all slots that
 *              are not LEAVING, into a chain; unlock list; for each: read next,
 *              then exchange the status for GRANTED, then futex wake as above.
 *   destroy    (only with DESTROY, as in crates/interpose) wait until
 *              users == 0.  users counts the threads inside wait; each
 *              decrements it after its last access to the condition variable
 *              and before it locks the mutex.  With SETTLE: wait until
 *              word == 0, as RawCondvar::settle, for waiters that are not
 *              cancelled.
 *
 * Not modelled.  Memory is sequentially consistent: Spin knows no weak memory,
 * so the model does not check memory orderings.  The mutex is an abstract lock.
 * No thread dies.  The bit lock blocks; its spinning and parking are omitted.
 * Time-outs, cancels and spurious futex returns may happen at any moment of a
 * sleep, but only TO, CA and SP times in a run: without such a bound the next
 * spurious return would repair a lost wake-up and hide it.
 *
 * The program.  tokens[c] is the predicate of condition variable c.  A waiter
 * takes one token per round, and waits while there is none; after a time-out or
 * a cancel it leaves without checking the tokens.  A signaller adds one token
 * under the mutex, unlocks it and signals once; a broadcaster adds BT tokens
 * and broadcasts once.  Signalling after unlocking is the harder case: it
 * allows every order that signalling under the mutex does, except those in
 * which others wait for the mutex.
 *
 * Grain.  With FINE every load, store and exchange of a shared word is a
 * separate step.  Without it steps are merged where other threads cannot
 * observe the difference: links and tokens are used under a lock only; a thread
 * with a TAKEN slot only awaits GRANTED, which is stored after the list is
 * unlocked; and a LEAVING slot keeps its status until its thread has the list's
 * lock.  Mutants always run with FINE.
 *
 * Properties.
 *   (a) the mutex is held by one thread: assert(mtx == ...) at each use.
 *   (b) no lost wake-up: when no step is possible any more (monitor), no thread
 *       sleeps on a slot that is not PARKED, no thread waits on c while
 *       tokens[c] > 0, and no thread is stuck elsewhere; and as an LTL formula,
 *       without bound on spurious returns.
 *   (c) a signal reaches one of the threads that waited when it was sent, and
 *       is consumed neither by a waiter that gave up nor by a later one (ghost
 *       state: elig, E, by; left out with NOGHOST).  "Waited" means: had
 *       unlocked the mutex in wait; "sent" means: when signal reads word.
 *   (d) the list is well-formed whenever its lock is released (wf).
 *   (e) in the end the list contains the sleepers, and is empty if there are
 *       none.
 *   (f) with DESTROY: no thread accesses a destroyed condition variable.
 *
 * Compile-time numbers: NW waiters, ROUNDS each; NS signallers, K signals each;
 * NB broadcasters of BT tokens; NCV condition variables (1 or 2); TO, CA, SP as
 * above.  Mutants: see the script "run".
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

#define FREE		0
#define WAITING		1
#define PARKED		2
#define TAKEN		3
#define TAKEN_PARKED	4
#define GRANTED		5
#define LEAVING		6
#define MINE		7	/* never a status: take succeeded */

#define LOCKED	255		/* the list's word, while it is locked */

#define NSIG	(NS * K + NB)	/* signal numbers are 1..NSIG */
#define BIT(w)	(1 << (w))

#ifdef FINE
#define MERGED			/* each step on its own */
#else
#define MERGED	atomic
#endif
#define LOCAL	atomic		/* one step, and then steps that no other thread sees */

#ifdef NOGHOST
#define G(x)	skip
#else
#define G(x)	x
#endif

/* the condition variables: zero, the first slot's number, or LOCKED */
byte word[NCV];
/* the slots, 1..NW; the list is a ring */
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

/* (d), called with the list lock held */
inline wf(first)
{
	gi = 0; gc = first;
	do
	:: gc != 0 ->
		assert(gi < NW);
		assert(status[gc] == WAITING || status[gc] == PARKED || status[gc] == LEAVING);
		assert(prv[nxt[gc]] == gc);
		gc = nxt[gc]; gi++;
		if
		:: gc == first -> break
		:: else
		fi
	:: else -> break
	od;
	gi = 0; gc = 0
}

/* Sets f, the first: while the list is locked only its locker knows it. */
inline list_lock(c)
{
	atomic { word[c] != LOCKED -> f = word[c]; word[c] = LOCKED; TOUCH(c) }
}

inline list_unlock(c)
{
	d_step { TOUCH(c); assert(word[c] == LOCKED); wf(f); word[c] = f; f = 0 }
}

/* for mutants: as if locked */
inline list_grab(c)
{
	atomic { word[c] != LOCKED -> f = word[c]; TOUCH(c) }
}

inline list_drop(c)
{
	d_step { TOUCH(c); word[c] = f; f = 0 }
}

#ifdef TAKE_UNLOCKED
#define SIGNAL_LOCK(c)		list_grab(c)
#define SIGNAL_UNLOCK(c)	list_drop(c)
#else
#define SIGNAL_LOCK(c)		list_lock(c)
#define SIGNAL_UNLOCK(c)	list_unlock(c)
#endif
#ifdef UNLINK_UNLOCKED
#define LEAVE_LOCK(c)		list_grab(c)
#define LEAVE_UNLOCK(c)		list_drop(c)
#else
#define LEAVE_LOCK(c)		list_lock(c)
#define LEAVE_UNLOCK(c)		list_unlock(c)
#endif

/* The waiter's slot becomes the last; the lock is held.  Uses x. */
inline push()
{
	d_step { status[me] = WAITING };
	if
	:: f == 0 ->
		d_step { nxt[me] = me };
		d_step { prv[me] = me };
		f = me
	:: else ->
		d_step { x = prv[f] };
		d_step { nxt[me] = f };
		d_step { prv[me] = x };
		d_step { nxt[x] = me };
		d_step { prv[f] = me; x = 0 };
#ifdef PUSH_AT_HEAD
		f = me
#endif
	fi
}

/* Slot w leaves the list; the lock is held.  Uses x (next), y (previous). */
inline unlink(w)
{
	d_step { x = nxt[w] };
	if
	:: x == w -> f = 0
	:: else ->
		d_step { y = prv[w] };
		d_step { nxt[y] = x };
#ifndef UNLINK_KEEPS_PREV
		d_step { prv[x] = y };
#endif
#ifndef UNLINK_KEEPS_FIRST
		d_step { if :: f == w -> f = x :: else fi };
#endif
		y = 0
	fi;
	x = 0
}

#ifdef LEAVING_IS_TAKEN
#define TAKEABLE(q)	(q == WAITING || q == PARKED || q == LEAVING)
#else
#define TAKEABLE(q)	(q == WAITING || q == PARKED)
#endif
#ifdef STORE_TAKEN
#define STILL(w, q)	true
#else
#define STILL(w, q)	(status[w] == q)
#endif
#if defined(GRANT_BEFORE_UNLINK)
#define MARK(q)		GRANTED
#elif defined(PARKED_FORGOTTEN)
#define MARK(q)		TAKEN
#else
#define MARK(q)		(q == PARKED -> TAKEN_PARKED : TAKEN)
#endif
#ifdef NO_TAKEN
#define MARK_ONE	false
#else
#define MARK_ONE	true
#endif
#ifdef BROADCAST_NO_TAKEN
#define MARK_ALL	false
#else
#define MARK_ALL	true
#endif
#if defined(NO_TAKEN) || defined(BROADCAST_NO_TAKEN)
#define SLEEPS(q)	(q == TAKEN_PARKED || q == PARKED)
#else
#define SLEEPS(q)	(q == TAKEN_PARKED)
#endif

/*
 * Moves slot h from the list to the chain t..l of those to be granted, unless
 * it is leaving; then q == MINE.  The lock is held.  mark: false in mutants.
 */
inline take(sid, mark)
{
	d_step { q = status[h] };
	do
	:: TAKEABLE(q) ->
		d_step {
			if
			:: STILL(h, q) ->
				status[h] = (mark -> MARK(q) : q);
				q = MINE;
				G(taken(h, sid))
			:: else -> q = status[h]
			fi
		}
	:: else -> break
	od;
	if
	:: q == MINE ->
		unlink(h);
		d_step { nxt[h] = 0 };
		if
		:: t == 0 -> t = h
		:: else -> d_step { nxt[l] = h }
		fi;
		l = h
	:: else
	fi
}

/* The one behind h into n, or zero. */
inline after()
{
	d_step { n = nxt[h]; if :: n == f -> n = 0 :: else fi }
}

/* Wakes the chain; the lock is not held.  wake: false in mutants. */
inline grant(wake)
{
	do
	:: t != 0 ->
#ifdef NEXT_AFTER_GRANTED
		h = t;
		d_step { q = status[h]; status[h] = GRANTED };
		if
		:: SLEEPS(q) -> asleep[h] = false
		:: else
		fi;
		d_step { t = nxt[h]; h = 0; q = 0 }
#else
		MERGED {
#ifdef GRANT_BEFORE_UNLINK
			d_step { h = t; t = 0; q = true };  /* it may be in a list again */
#else
			d_step { h = t; t = nxt[h] };
			d_step {
				q = status[h]; status[h] = GRANTED;
				q = (SLEEPS(q) && wake);
				h = (q -> h : 0)
			}
#endif
		};
		if
		:: q -> d_step { asleep[h] = false; h = 0; q = 0 }
		:: else
		fi
#endif
	:: else -> break
	od
}

#if defined(NO_WAKE) || defined(WAKE_BEFORE_TAKEN)
#define WAKE_ONE	false
#else
#define WAKE_ONE	true
#endif
#ifdef BROADCAST_NO_WAKE
#define WAKE_ALL	false
#else
#define WAKE_ALL	true
#endif

/* sid: number of the signal; fresh: not one passed on.  Uses all letters. */
inline signal(c, sid, fresh)
{
	d_step {
		TOUCH(c);
		h = word[c];
		G(if :: fresh -> E[sid] = elig[c] :: else fi);
		G(assert(h != 0 || E[sid] == 0))
	};
	if
	:: h == 0
	:: else ->
		MERGED {
			SIGNAL_LOCK(c);
#ifdef STALE_HEAD
			if :: h == LOCKED -> h = f :: else fi;
#else
			h = f;
#endif
			do
			:: h != 0 ->
				after();
#ifdef WAKE_BEFORE_TAKEN
				asleep[h] = false;
#endif
				take(sid, MARK_ONE);
				if
				:: q == MINE -> break
				:: else
				fi;
#ifdef STOP_AT_LEAVING
				break;
#endif
				h = n; n = 0; q = 0
			:: else -> G(assert(E[sid] == 0)); break
			od;
			h = 0; n = 0; q = 0; l = 0;
			SIGNAL_UNLOCK(c)
		};
		grant(WAKE_ONE)
	fi
}

inline broadcast(c, sid)
{
	d_step {
		TOUCH(c);
		h = word[c];
		G(E[sid] = elig[c]);
		G(assert(h != 0 || E[sid] == 0))
	};
	if
	:: h == 0
	:: else ->
		MERGED {
			list_lock(c);
			h = f;
			do
			:: h != 0 ->
				after();
				take(sid, MARK_ALL);
				h = n; n = 0; q = 0
			:: else -> break
			od;
			G(assert(E[sid] == 0));
			l = 0;
			list_unlock(c)
		};
		grant(WAKE_ALL)
	fi
}

#if defined(DESTROY) && !defined(SETTLE)
#define ENTER(c)	users[c]++
#define LEAVE(c)	TOUCH(c); users[c]--
#define UNUSED(c)	(users[c] == 0)
#else
#define ENTER(c)	skip
#define LEAVE(c)	skip
#define UNUSED(c)	(word[c] == 0)
#endif

inline enqueue(c)
{
	MERGED {
		d_step { ENTER(c) };
		list_lock(c);
		push();
		list_unlock(c)
	}
}

#define SUCCESS		0
#define TIMED_OUT	1
#define CANCELLED	2

/* Called with the mutex held; lock_again follows.  Leaves why = result. */
inline wait(c)
{
#ifdef ENQUEUE_LATE
	d_step { assert(mtx == me); mtx = 0; INSIDE(1); G(elig[c] = elig[c] | BIT(me)) };
	enqueue(c);
#else
	enqueue(c);
	d_step {
		assert(mtx == me);
		mtx = 0;
		INSIDE(1);
		G(if :: by[me] == 0 -> elig[c] = elig[c] | BIT(me) :: else fi)
	};
#endif
	why = SUCCESS;
	do
	::
		/* sleep_word */
#ifdef STORE_PARKED
		d_step { q = status[me] };
		LOCAL {
		if :: q == WAITING -> d_step { status[me] = PARKED; q = PARKED } :: else fi;
#else
		LOCAL {
		d_step {
			q = status[me];
			if :: q == WAITING -> status[me] = PARKED; q = PARKED :: else fi
		};
#endif
		if
		:: q != PARKED -> break		/* finish awaits GRANTED */
		:: else -> q = 0
		fi
		};
		/* the kernel: compare and sleep */
#ifdef NO_COMPARE
		d_step { asleep[me] = true };
#else
		d_step { if :: status[me] == PARKED -> asleep[me] = true :: else fi };
#endif
end_asleep:
		LOCAL {
		if
		:: asleep[me] == false
#ifdef SPURIOUS_UNBOUNDED
		:: d_step { asleep[me] -> asleep[me] = false }
#else
		:: d_step { sp_left > 0 && asleep[me] -> sp_left--; asleep[me] = false }
#endif
		:: d_step { to_left > 0 -> to_left--; asleep[me] = false; why = TIMED_OUT }
		:: d_step { ca_left > 0 -> ca_left--; asleep[me] = false; why = CANCELLED }
		fi;
#ifdef ANY_RETURN_IS_A_WAKE
		if :: why == SUCCESS -> goto returned :: else fi;
#endif
		if
		:: why != SUCCESS -> break
		:: else
		fi
		}
	od;
	/* finish, cancel: this exchange decides */
	MERGED {
		d_step { q = status[me] };
		if
		:: q == WAITING || q == PARKED ->
			d_step {
#ifndef STORE_LEAVING
				if
				:: status[me] == q ->
					status[me] = LEAVING; q = LEAVING; G(departs(me))
				:: else -> q = status[me]
				fi
#else
				status[me] = LEAVING; q = LEAVING; G(departs(me))
#endif
			}
		:: else
		fi
	};
	if
	:: q == LEAVING ->
		q = 0;
		MERGED {
#ifndef LEAVING_STAYS
			LEAVE_LOCK(c);
			unlink(me);
			LEAVE_UNLOCK(c);
#endif
			d_step { status[me] = FREE }
		}
	:: else ->
		q = 0;
		MERGED {
		if
#ifdef TAKEN_IS_ENOUGH
		:: why == SUCCESS
		:: why != SUCCESS && status[me] == GRANTED
#elif defined(NO_DRAIN)
		:: why == SUCCESS && status[me] == GRANTED
		:: why != SUCCESS
#else
		:: status[me] == GRANTED
#endif
		fi;
		/* the signal is ours: keep it, or pass it on */
		d_step { status[me] = FREE }
		};
		if
		:: why == SUCCESS
#ifdef TIMEOUT_LOSES_SIGNAL
		:: why == TIMED_OUT
#else
		:: why == TIMED_OUT -> why = SUCCESS
#endif
		:: why == CANCELLED ->
#ifndef CANCEL_KEEPS_SIGNAL
			d_step { s = by[me]; by[me] = 0 };
#ifdef LEAVE_EARLY
			d_step { LEAVE(c) };
#endif
			signal(c, s, false);
			s = 0
#endif
		fi
	fi;
returned:
	skip;
#ifdef LEAVE_EARLY
	if :: why != CANCELLED -> d_step { LEAVE(c) } :: else fi;
#elif !defined(LEAVE_LATE)
	d_step { LEAVE(c) };
#endif
	/* (c): a thread without success has consumed nothing */
	d_step {
		G(assert(why == SUCCESS || by[me] == 0));
		G(if :: by[me] != 0 -> E[by[me]] = 0 :: else fi);
		by[me] = 0;
#ifdef ANY_RETURN_IS_A_WAKE
		status[me] = FREE;
#endif
#ifndef FINE
		/* not read any more: fewer states */
		nxt[me] = 0; prv[me] = 0;
#endif
		INSIDE(-1)
	};
	skip
}

/* the end of wait */
inline lock_again(c)
{
	atomic { mtx == 0 -> mtx = me };
#ifdef LEAVE_LATE
	d_step { LEAVE(c) };
#endif
	skip
}

#define CV	(r % NCV)

proctype Waiter(byte me)
{
	byte r = 0, why = 0, s = 0;
	byte f = 0, h = 0, n = 0, t = 0, l = 0, q = 0, x = 0, y = 0;

	do
	:: r < ROUNDS ->
		MERGED {
			atomic { mtx == 0 -> mtx = me };
			if
			:: tokens[CV] > 0 -> goto got
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
got:
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
	byte i = 0;
	byte f = 0, h = 0, n = 0, t = 0, l = 0, q = 0, x = 0, y = 0;

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
	byte f = 0, h = 0, n = 0, t = 0, l = 0, q = 0, x = 0, y = 0;
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
		UNUSED(BCV) ->
#endif
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
	assert(word[c] != LOCKED);
	assert(word[c] == 0 || tokens[c] == 0);		/* (b) */
	wf(word[c]);					/* (d) */
	gc = word[c];
	do
	:: gc != 0 ->
		assert(asleep[gc]);			/* (e) */
		gp++; gc = nxt[gc];
		if
		:: gc == word[c] -> break
		:: else
		fi
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
			:: asleep[gi] -> assert(status[gi] == PARKED); gp++
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
