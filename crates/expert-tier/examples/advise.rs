//! Advises experts of one layer and says what came: `advise POOL LAYER EXPERT,EXPERT… [FORM]`.

use expert_tier::{AdviceForm, Pool, Tier, TierConfig};
use router_trace::ExpertId;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [pool, layer, experts, form @ ..] = &args[..] else {
        return Err(
            "usage: advise POOL LAYER EXPERT,EXPERT… [pieces|blocking-read|single-call]".into()
        );
    };
    let form: AdviceForm = form.first().map_or(Ok(AdviceForm::default()), |form| form.parse())?;
    let tier = Tier::open(Pool::open(pool)?, TierConfig::default())?;
    let advisor = tier.advisor();
    advisor.lower_reads();
    for expert in experts.split(',') {
        let id = ExpertId::new(layer.parse()?, expert.parse()?);
        let told = advisor.advise(id, form, &mut || false)?;
        println!("{id}, {form}: {told:?}");
    }
    for notice in tier.notices().iter().chain(&advisor.notices()) {
        eprintln!("{notice}");
    }
    Ok(())
}
