// Rules, operators and target for a session: reading them takes longer than a small model does, and
// programs make session after session.
#pragma once
#include <memory>

#include "engine/pipeline.h"

namespace ferrule {

/// load_knowledge, or what it gave another session of this process that had equal options while the
/// files were as they are. The last few are kept.
Result<std::shared_ptr<const Knowledge>> shared_knowledge(const EngineOptions& options);

}  // namespace ferrule
