package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Requests and responses about queues, quotas of namespaces, and reservations.
type (
	// QueueState is a queue with its settings, as configured and as effective, and its usage.
	QueueState struct {
		Queue     *structs.Queue // as configured; nil for a queue that only jobs mention
		Effective *structs.Queue // with inherited values and defaults filled in
		Usage     structs.QueueUsage
		Mean      structs.Amount // decayed usage as an amount, now
		Share     int64          // weighted dominant share of the resources held, in millionths
		Submitted int64          // jobs that are not dead, including the subtree
		Waiting   int64          // waiting jobs, including the subtree
		Part      int64          // of the cluster that it holds, not divided by its weight, in millionths
		Target    int64          // part of the cluster that it is due by weight, in millionths; 0: it holds and wants nothing
		Jain      int64          // Jain's index of the parts by weight in it, in millionths; 0: nothing is held
		Oldest    time.Duration  // wait of the job that waits longest
		// Preemptions counts jobs preempted on behalf of the subtree's jobs.
		Preemptions int64
		Lost        structs.QueueLoss // by the subtree's jobs
		PeriodUse   int64             // of its budget, in the current period: thousandths of GPUs times seconds
		PeriodEnd   structs.LogTime   // when a new period begins; 0: it has no budget
		Users       []QueueUserState
	}
	// QueueUserState is one submitter's usage of a queue.
	QueueUserState struct {
		Usage     structs.QueueUsage
		Mean      structs.Amount
		Weight    int64 // relative to the other submitters
		Share     int64
		Part      int64 // Part, Target and the rest as those of the queue
		PeriodUse int64
		Target    int64
		Waiting   int64
		Oldest    time.Duration
		Preempted int64 // times that a job was preempted
		Lost      structs.QueueLoss
	}
	// QueueGetResponse is a queue; nil when absent.
	QueueGetResponse struct {
		Meta
		Queue *QueueState
	}
	// QueueTreeResponse lists queues by path.
	QueueTreeResponse struct {
		Meta
		Queues []QueueState
		Total  structs.Amount // of the cluster
	}
	// QueueUpsertRequest writes queues, parents first.
	QueueUpsertRequest struct{ Queues []*structs.Queue }
	// QueueUpsertResponse answers writes of queues and quotas. It has warnings about guarantees that exceed the cluster in
	// total, and limits of GPU models that no node has.
	QueueUpsertResponse struct {
		Index    structs.Index
		Warnings []string
	}
	// QuotaState is a quota with the usage of its namespaces.
	QuotaState struct {
		Quota      *structs.QuotaSpec
		Held       structs.Amount
		Models     []structs.ModelAmount // GPUs of Held by model, where some limit is by model
		Namespaces []string
	}
	// QuotaGetResponse is a quota; nil when absent.
	QuotaGetResponse struct {
		Meta
		Quota *QuotaState
	}
	// QuotaListResponse lists quotas by name.
	QuotaListResponse struct {
		Meta
		Quotas []QuotaState
	}
	// QuotaUpsertRequest writes a quota.
	QuotaUpsertRequest struct{ Quota *structs.QuotaSpec }
	// ReservationListResponse lists reservations by ID: those of operators and of waiting jobs.
	ReservationListResponse struct {
		Meta
		Reservations []*structs.Reservation
	}
	// ReservationGetResponse is a reservation; nil when absent.
	ReservationGetResponse struct {
		Meta
		Reservation *structs.Reservation
	}
	// ReserveRequest writes an operator's reservation.
	ReserveRequest struct{ Reservation *structs.Reservation }
)

// QueueRequest is a request about queues; authorisation needs their paths.
type QueueRequest interface{ QueuePaths() []structs.QueuePath }

// QueuePaths implements QueueRequest.
func (r *QueueUpsertRequest) QueuePaths() []structs.QueuePath {
	var paths []structs.QueuePath
	for _, q := range r.Queues {
		if q != nil {
			paths = append(paths, q.Path)
		}
	}
	return paths
}

// QueuePaths implements QueueRequest.
func (r *NameRequest) QueuePaths() []structs.QueuePath {
	return []structs.QueuePath{structs.QueuePath(r.Name)}
}

// Methods of queues, quotas and reservations.
var (
	QueueTree         = method[ListRequest, QueueTreeResponse]("Queue.Tree", SideServer, KindRead, Need{AnyToken: true})
	QueueGet          = method[NameRequest, QueueGetResponse]("Queue.Get", SideServer, KindRead, Need{Queue: "read"})
	QueueUpsert       = method[QueueUpsertRequest, QueueUpsertResponse]("Queue.Upsert", SideServer, AtLeader, Need{Queue: "write"})
	QueueDelete       = method[NameRequest, WriteResponse]("Queue.Delete", SideServer, AtLeader, Need{Queue: "write"})
	QuotaList         = method[ListRequest, QuotaListResponse]("Quota.List", SideServer, KindRead, Need{AnyToken: true})
	QuotaGet          = method[NameRequest, QuotaGetResponse]("Quota.Get", SideServer, KindRead, Need{AnyToken: true})
	QuotaUpsert       = method[QuotaUpsertRequest, QueueUpsertResponse]("Quota.Upsert", SideServer, AtLeader, Need{Quota: "write"})
	QuotaDelete       = method[NameRequest, WriteResponse]("Quota.Delete", SideServer, AtLeader, Need{Quota: "write"})
	ReservationList   = method[ListRequest, ReservationListResponse]("Reservation.List", SideServer, KindRead, Need{AnyToken: true})
	ReservationGet    = method[NameRequest, ReservationGetResponse]("Reservation.Get", SideServer, KindRead, Need{AnyToken: true})
	ReservationUpsert = method[ReserveRequest, WriteResponse]("Reservation.Upsert", SideServer, AtLeader, Need{Operator: "write"})
	ReservationDelete = method[NameRequest, WriteResponse]("Reservation.Delete", SideServer, AtLeader, Need{Operator: "write"})
)
