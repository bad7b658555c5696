/*
 * Splits and unlinks of Latchwork's trees, for Spin.
 *
 * Modelled: crates/tree/src/structure.rs (split, finish, attach, complete),
 * unlink.rs, walk.rs (how a reader steps from page to page, and how a writer
 * latches one), and from crates/store/src/files page_intents.rs and space.rs
 * (ownership of pages).
 *
 *   walk       read a page; load the version of the next; check that the
 *              previous page is unchanged, else begin at the root.  Read the
 *              next page, if it still has that version.  A key at its upper
 *              fence or after it is to the right.
 *   take       latch the page; check that the previous page is unchanged.
 *   split      with a page intent: Image of the new page; Split of the left
 *              one, which marks it as incomplete; the new page is linked.
 *   finish     latch the parent; find the incomplete page; Attach; latch the
 *              left page; Complete.  Any writer that meets the mark does it.
 *   unlink     latch the parent, the left page, the empty page; store a page
 *              intent for the empty page; Incomplete; Purge; Absorb; unlatch;
 *              settle.
 *   take page  from the list; page intent; clear its bit.
 *   settle     if the tree refers to the page, clear the page intent.  Else set
 *              its bit; clear the page intent; add it to the list.
 *   sweep      of a dead thread: its latches, and settle each of its page
 *              intents.
 *
 * A thread may die between any two of these steps, DEATHS times in a run; with
 * two sweepers, one may also die.  A record and the change of its page are one
 * step: after a death between them the page is rebuilt from the log.
 *
 * Not modelled.  Memory is sequentially consistent.  There is one inner page,
 * the root, which has room: so inner pages are not split, the root does not
 * grow, and complete_before is not reached.  Latches block and are not fair; a
 * reader reads a page between two changes also while it is latched.  The bits
 * and the list are words, not a separate tree and list.  A ghost is removed at
 * once.  A page has CAP keys.
 *
 * The program.  Keys are 1..KEYS.  The first and the last always exist, and
 * readers must find them; they search for the second as well.  Writer n has the
 * key n + 1: it puts, removes and unlinks, OPS times, in any order.  A thief
 * takes pages of the list for another tree.
 *
 * Properties.
 *   (a) a reader finds the key that it searches for, on a page of this tree.
 *   (b) a writer finds its key as it left it (there[]), on its latched page,
 *       to which the key belongs.
 *   (c) no page has two owners: a taken page has no page intent of another
 *       thread and is not in the tree.
 *   (d) in the end the leaves are one chain from the first key to the last, and
 *       each is in the root, or the page to its left is marked as incomplete.
 *   (e) in the end each page is in the tree, or the thief's, or free by its bit
 *       and then in the list once, except one page for each death; no page
 *       intent is left.
 *   (f) no thread is stuck.
 *
 * Compile-time numbers: NW writers (1 or 2), OPS; NR readers; NT thieves; NSW
 * sweepers; DEATHS; PAGES; START: leaves at first (1, 2 or 3).  Mutants: see
 * the script "run".
 */

#ifndef NW
#define NW 2
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NT
#define NT 0
#endif
#ifndef NSW
#define NSW 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef PAGES
#define PAGES 4
#endif
#ifndef START
#define START 1
#endif
#define KEYS	4
#define CAP	2

#define N	(NW + NR + NT)
#define ALL	(N + NSW)
#define ROOT	0
#define NONE	255
#define BIT(k)	(1 << (k))
#define ABOVE	(KEYS + 1)		/* the upper fence of the last leaf */

/* pages 1..PAGES; the root is 0 */
byte low[PAGES + 1], high[PAGES + 1], right[PAGES + 1], keys[PAGES + 1];
bool incomplete[PAGES + 1], alien[PAGES + 1];
byte latch[PAGES + 1];
byte first = 1, child[KEYS + 2];	/* the root's children, by separator */
/* space */
bool free[PAGES + 1];			/* free, says the catalog */
byte list[PAGES + 1];			/* how often in the pool's list */
byte hand[ALL + 1];
/* the region */
bool dead[ALL + 1], swept[ALL + 1];
byte claim[ALL + 1];
byte deaths = DEATHS;
byte ndone;
/* versions: whether the page that a thread has read, or is about to, changed */
byte via[ALL + 1], cur[ALL + 1];
bool stale[ALL + 1], moved[ALL + 1];
/* ghosts */
bool there[KEYS + 1];
hidden byte gi, gp, gs;

#if NSW > 1
#define MORTAL	ALL
#else
#define MORTAL	(NW)
#endif

inline point()
{
	if
	:: true
	:: atomic { deaths > 0 && me <= MORTAL && (me <= NW || me > N) -> deaths--; goto died }
	fi
}

#ifdef FINE
#define MERGED
#else
#define MERGED	atomic
#endif

/* a page gets a new version; part of the step that changes it */
inline changed(p)
{
	gi = 1;
	do
	:: gi <= ALL ->
		if :: via[gi] == p -> stale[gi] = true :: else fi;
		if :: cur[gi] == p -> moved[gi] = true :: else fi;
		gi++
	:: else -> break
	od;
	gi = 0
}

/* the root's child in whose range k is; of separators below `under` */
inline child_of(to, k)
{
	gi = k; to = first;
	do
	:: gi > 1 ->
		if
		:: child[gi] != 0 -> to = child[gi]; break
		:: else -> gi--
		fi
	:: else -> break
	od;
	gi = 0
}

#define FROM_ROOT	via[me] = NONE; cur[me] = ROOT; stale[me] = false; moved[me] = false; sep = 0; rt = 0

/* leaves pg, the leaf of k; and sep and rt if something is missing */
inline walk(k)
{
	atomic { FROM_ROOT };
	do
	::
#ifndef NO_VALIDATE
		/* the page before, once more */
		if
		:: atomic { stale[me] -> FROM_ROOT }
		:: else
		fi;
#endif
		d_step {
			if
			:: moved[me] -> pg = cur[me]; gs = 2
			:: !moved[me] && cur[me] == ROOT -> child_of(pg, k); gs = 1
			:: else ->
				pg = cur[me]; gs = 0;
				if
				:: incomplete[pg] -> sep = high[pg]; rt = right[pg]
				:: else
				fi;
				if
				:: k >= high[pg] && right[pg] != 0 -> pg = right[pg]; gs = 1
				:: else
				fi
			fi;
			if :: gs == 1 -> via[me] = cur[me]; stale[me] = false :: else fi;
			ok = gs; gs = 0
		};
		if
		:: ok == 0 -> break
		:: else ->
			/* the version of the next page, or of this one again */
			atomic { cur[me] = pg; moved[me] = false; ok = 0 }
		fi
	od
}

inline take_page()
{
	if
	:: atomic { list[1] > 0 -> pg = 1 }
	:: atomic { list[1] == 0 && list[2] > 0 -> pg = 2 }
#if PAGES > 2
	:: atomic { list[1] == 0 && list[2] == 0 && list[3] > 0 -> pg = 3 }
#endif
#if PAGES > 3
	:: atomic { list[1] == 0 && list[2] == 0 && list[3] == 0 && list[4] > 0 -> pg = 4 }
#endif
	:: else -> pg = 0
	fi;
	if
	:: pg != 0 ->
		atomic {
			if
			:: list[pg] > 0 -> list[pg]--
			:: else -> pg = 0
			fi;
			/* (c) */
			gi = 1;
			do
			:: gi <= ALL -> assert(pg == 0 || hand[gi] != pg); gi++
			:: else -> break
			od;
			gi = 0;
			point()
		};
		if
		:: pg != 0 ->
#ifdef HOLD_LATE
			atomic { free[pg] = false; point() };
			atomic { hand[me] = pg; point() }
#else
			atomic { hand[me] = pg; point() };
			atomic {
				if
				:: free[pg] -> free[pg] = false
				:: else -> hand[me] = 0
				fi;
				point()
			}
#endif
		:: else
		fi
	:: else
	fi
}

/* whether the tree leads to p: leaves gp */
inline leads_to(p)
{
	gp = low[p];
	child_of(gs, gp);
	do
	:: gp >= high[gs] && right[gs] != 0 -> gs = right[gs]
	:: else -> break
	od;
	gp = (gs == p);
	gs = 0
}

/* decides about the page in the hand of `slot` */
inline settle(slot)
{
	if
	:: hand[slot] != 0 ->
		d_step { leads_to(hand[slot]); ok = gp; gp = 0; pg = hand[slot] };
		if
		:: ok -> hand[slot] = 0
		:: else ->
			atomic { free[pg] = true; point() };
#ifdef LIST_FIRST
			atomic { if :: list[pg] == 0 -> list[pg]++ :: else fi; point() };
			hand[slot] = 0
#else
			atomic { hand[slot] = 0; point() };
			atomic { if :: list[pg] == 0 -> list[pg]++ :: else fi; point() }
#endif
		fi;
		ok = 0
	:: else
	fi
}

inline lock(p)
{
	atomic { latch[p] == 0 -> latch[p] = me }
}

/* puts the page rt into the root, and takes the mark off its left one */
inline finish()
{
	MERGED {
	lock(ROOT);
	d_step {	/* left_of */
		child_of(left, sep - 1);
		do
		:: high[left] < sep && right[left] != 0 -> left = right[left]
		:: else -> break
		od;
		if
		:: high[left] == sep && right[left] == rt && incomplete[left]
		:: else -> left = 0
		fi
	};
	if
	:: left != 0 && (child[sep] == 0 || child[sep] == rt) ->
#ifndef COMPLETE_FIRST
		if
		:: atomic { child[sep] == 0 -> child[sep] = rt; changed(ROOT); point() }
		:: else
		fi;
#endif
		lock(left);
		atomic {
			if
			:: high[left] == sep && incomplete[left] && right[left] == rt ->
				incomplete[left] = false; changed(left)
			:: else
			fi;
			point();
			latch[left] = 0
		}
#ifdef COMPLETE_FIRST
		;
		atomic { child[sep] = rt; changed(ROOT); point() }
#endif
	:: else
	fi;
	atomic { latch[ROOT] = 0; left = 0; sep = 0; rt = 0; point() }
	}
}

/* the upper half of pg, which is in hand, goes to the page in hand */
inline split()
{
	atomic {
		at = hand[me];
		/* the greatest key moves */
		sep = KEYS;
		do
		:: (keys[pg] & BIT(sep)) == 0 -> sep--
		:: else -> break
		od;
		assert(sep > low[pg] && latch[at] == 0)
	};
#ifdef NEW_PAGE_LAST
	cut_left();
#endif
	atomic {
		low[at] = sep;
#ifdef NEW_PAGE_LAST
		right[at] = was_right; high[at] = was_high; incomplete[at] = was_incomplete;
		keys[at] = was_keys;
#else
		high[at] = high[pg];
		right[at] = right[pg];
		keys[at] = keys[pg] & ~(BIT(sep) - 1);
		incomplete[at] = incomplete[pg];
#endif
		changed(at);
		point()
	};
#ifdef LET_GO_EARLY
	atomic { hand[me] = 0; point() };
#endif
#ifndef NEW_PAGE_LAST
	atomic { cut_left(); point() };
#endif
	atomic { latch[pg] = 0; point(); hand[me] = 0; rt = at; at = 0; point() }
}

inline cut_left()
{
	d_step {
#ifdef NEW_PAGE_LAST
		was_right = right[pg]; was_high = high[pg]; was_incomplete = incomplete[pg];
		was_keys = keys[pg] & ~(BIT(sep) - 1);
#endif
		high[pg] = sep;
		right[pg] = at;
		keys[pg] = keys[pg] & (BIT(sep) - 1);
#ifndef NO_MARK
		incomplete[pg] = true;
#endif
		changed(pg)
	}
}

#define MEET(l, g)	(right[l] == g && high[l] == low[g] && low[g] == sep && right[g] != 0)
#define FULL(p)	(keys[p] == 6 || keys[p] == 10 || keys[p] == 18 || keys[p] == 12 || keys[p] == 20 || keys[p] == 24)

proctype Writer(byte me)
{
	byte n = 0, pg = 0, sep = 0, rt = 0, at = 0, left = 0, ok = 0, op = 0;
	byte key;
#ifdef NEW_PAGE_LAST
	byte was_right = 0, was_high = 0, was_keys = 0;
	bool was_incomplete = false;
#endif

	key = me + 1;
	do
	:: n < OPS ->
		if
		:: op = 0
		:: op = 1
		:: op = 2
		fi;
begin:
		walk(key);
		if
		:: sep != 0 -> finish(); goto begin
		:: else
		fi;
		if
		:: op < 2 ->
			/* put or remove */
			lock(pg);
			atomic {
				if
#ifdef NO_TAKE_CHECK
				:: key >= high[pg] || incomplete[pg] -> latch[pg] = 0; goto begin
#else
				:: stale[me] || key >= high[pg] || incomplete[pg] -> latch[pg] = 0; goto begin
#endif
				:: else
				fi;
				/* (b) */
				assert(key >= low[pg] && !alien[pg]);
				assert(there[key] == ((keys[pg] & BIT(key)) != 0))
			};
			if
			:: op == 0 && !there[key] && FULL(pg) ->
				if
				:: hand[me] != 0 -> split(); finish(); goto begin
				:: else ->
					latch[pg] = 0;
					take_page();
					if
					:: hand[me] != 0 -> goto begin
					:: else
					fi
				fi
			:: else ->
				atomic {
					if
					:: op == 0 -> keys[pg] = keys[pg] | BIT(key); there[key] = true
					:: op == 1 -> keys[pg] = keys[pg] & ~BIT(key); there[key] = false
					fi;
					changed(pg);
					point();
					latch[pg] = 0
				}
			fi
		:: else ->
			/* unlink the leaf of the key, if it is empty */
			atomic {
				sep = low[pg];
				ok = (keys[pg] == 0 && !incomplete[pg] && right[pg] != 0 && sep > 1)
			};
			if
			:: ok ->
				ok = 0;
				MERGED {
				lock(ROOT);
				if
				:: child[sep] != 0 ->
					d_step { at = child[sep]; child_of(left, sep - 1) };
					lock(left);
					lock(at);
					d_step {
						ok = (MEET(left, at) && !incomplete[left] && !incomplete[at]);
#ifndef UNLINKS_FULL
						ok = (ok && keys[at] == 0);
#endif
#ifndef UNLINKS_HELD
						gi = 1;
						do
						:: gi <= ALL -> if :: hand[gi] == at -> ok = 0 :: else fi; gi++
						:: else -> break
						od;
						gi = 0
#endif
					};
					if
					:: ok ->
						ok = 0;
#ifndef NOT_IN_HAND
						atomic { hand[me] = at; point() };
#endif
#ifndef UNLINK_NO_MARK
						atomic { incomplete[left] = true; changed(left); point() };
#endif
#ifndef ABSORB_FIRST
						atomic { child[sep] = 0; changed(ROOT); point() };
#endif
						atomic {
							high[left] = high[at]; right[left] = right[at];
							incomplete[left] = false;
							changed(left);
							point()
						};
#ifdef ABSORB_FIRST
						atomic { child[sep] = 0; changed(ROOT); point() };
#endif
#ifdef NOT_IN_HAND
						hand[me] = at;
#endif
						atomic { changed(at); latch[ROOT] = 0; latch[left] = 0; latch[at] = 0; point() }
					:: else -> atomic { latch[ROOT] = 0; latch[left] = 0; latch[at] = 0 }
					fi
				:: else -> latch[ROOT] = 0
				fi
				}
			:: else
			fi
		fi;
		settle(me);
		atomic { n++; op = 0; pg = 0; sep = 0; rt = 0; left = 0; at = 0; ok = 0; via[me] = NONE; cur[me] = NONE }
	:: else -> break
	od;
	goto over;
died:
	dead[me] = true;
over:
	atomic { n = 0; op = 0; pg = 0; sep = 0; rt = 0; left = 0; at = 0; ok = 0; key = 0;
		via[me] = NONE; cur[me] = NONE; stale[me] = false; moved[me] = false; ndone++ }
}

proctype Reader(byte me)
{
	byte pg = 0, sep = 0, rt = 0, ok = 0, key;

	if
	:: key = 1
	:: key = 2
	:: key = KEYS
	fi;
	walk(key);
	/* (a): as it was when it had this version */
	atomic {
		assert(moved[me] || !alien[pg]);
		assert(moved[me] || key == 2 || (keys[pg] & BIT(key)) != 0);
		pg = 0; sep = 0; rt = 0; ok = 0; key = 0;
		via[me] = NONE; cur[me] = NONE; stale[me] = false; moved[me] = false; ndone++
	}
}

#if NT > 0
/* takes a page for another tree */
proctype Thief(byte me)
{
	byte pg = 0;

	take_page();
	if
	:: pg != 0 && hand[me] == pg ->
		d_step {
			alien[pg] = true; low[pg] = 1; high[pg] = ABOVE; right[pg] = 0; keys[pg] = 0;
			incomplete[pg] = false;
			changed(pg);
			hand[me] = 0
		}
	:: else
	fi;
	goto over;
died:
over:
	atomic { pg = 0; ndone++ }
}
#endif

#define CLAIMABLE(d)	(dead[d] && !swept[d] && (claim[d] == 0 || dead[claim[d]]))

proctype Sweeper(byte me)
{
	byte d = 0, pg = 0, ok = 0;

end_none:
	do
	:: atomic { CLAIMABLE(1) -> d = 1; claim[d] = me } -> goto sweep
#if NW > 1
	:: atomic { CLAIMABLE(2) -> d = 2; claim[d] = me } -> goto sweep
#endif
#if NSW > 1
	:: atomic { me != N + 1 && CLAIMABLE(N + 1) -> d = N + 1; claim[d] = me } -> goto sweep
	:: atomic { me != N + 2 && CLAIMABLE(N + 2) -> d = N + 2; claim[d] = me } -> goto sweep
#endif
	od;
sweep:
	atomic {
		gi = 0;
		do
		:: gi <= PAGES -> if :: latch[gi] == d -> latch[gi] = 0 :: else fi; gi++
		:: else -> break
		od;
		gi = 0
	};
	point();
	settle(d);
	atomic { swept[d] = true; claim[d] = 0; d = 0; pg = 0; ok = 0 };
	goto end_none;
died:
	atomic { dead[me] = true; d = 0; pg = 0; ok = 0 }
}

init {
	byte i = 1;

	atomic {
		i = 0;
		do
		:: i <= ALL -> via[i] = NONE; cur[i] = NONE; i++
		:: else -> break
		od;
#if START == 1
		low[1] = 1; high[1] = ABOVE; keys[1] = BIT(1) | BIT(KEYS);
#elif START == 2
		low[1] = 1; high[1] = KEYS; right[1] = 2; keys[1] = BIT(1) | BIT(2); there[2] = true;
		low[2] = KEYS; high[2] = ABOVE; keys[2] = BIT(KEYS); child[KEYS] = 2;
#else
		low[1] = 1; high[1] = 2; right[1] = 2; keys[1] = BIT(1);
		low[2] = 2; high[2] = KEYS; right[2] = 3; child[2] = 2;
		low[3] = KEYS; high[3] = ABOVE; keys[3] = BIT(KEYS); child[KEYS] = 3;
#endif
		i = START + 1;
		do
		:: i <= PAGES -> free[i] = true; list[i] = 1; i++
		:: else -> i = 1; break
		od;
		do
		:: i <= NW -> run Writer(i); i++
		:: i > NW && i <= NW + NR -> run Reader(i); i++
#if NT > 0
		:: i > NW + NR && i <= N -> run Thief(i); i++
#endif
		:: i > N && i <= ALL ->
#if DEATHS > 0
			run Sweeper(i);
#endif
			i++
		:: else -> i = 0; break
		od
	};
	/* the monitor: nothing else can move */
	timeout;
	assert(ndone == N);			/* (f) */
	d_step {
		/* (d) */
		gp = first; gs = 0;
		assert(low[gp] == 1);
		do
		:: gp != 0 ->
			gs = gs | BIT(gp);
			assert(!alien[gp] && latch[gp] == 0);
			if
			:: right[gp] == 0 -> assert(high[gp] == ABOVE)
			:: else ->
				assert(low[right[gp]] == high[gp] && (gs & BIT(right[gp])) == 0);
				assert(child[high[gp]] == right[gp] || incomplete[gp])
			fi;
			gp = right[gp]
		:: else -> break
		od;
		gi = 2;
		do
		:: gi <= KEYS -> assert(child[gi] == 0 || (gs & BIT(child[gi])) != 0); gi++
		:: else -> break
		od;
		/* (e) */
		gi = 1; i = 0;
		do
		:: gi <= PAGES ->
			if
			:: (gs & BIT(gi)) != 0 -> assert(!free[gi] && list[gi] == 0)
			:: (gs & BIT(gi)) == 0 && alien[gi] -> assert(!free[gi] && list[gi] == 0)
			:: else ->
				assert(free[gi] && list[gi] <= 1);
				if :: list[gi] == 0 -> i++ :: else fi
			fi;
			gi++
		:: else -> break
		od;
		assert(i + deaths <= DEATHS);
		gi = 1;
		do
		:: gi <= ALL -> assert(hand[gi] == 0); gi++
		:: else -> break
		od;
		gi = 0; gp = 0; gs = 0; i = 0
	}
}
